"""Files and folders that are read and written, with errors that name them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qwen35_moe.errors import Qwen35MoeError


class FileError(Qwen35MoeError):
    """A file that holds something else than text in UTF-8."""


def check_folder(folder: Path, error: type[Qwen35MoeError]) -> None:
    """Raise `error` where there is no such folder."""
    if not folder.is_dir():
        raise error(f"{folder}: " + ("expected a folder, got a file" if folder.exists() else "there is no such folder"))


def parse_object(data: bytes, error: type[Qwen35MoeError], *, where: object) -> dict[str, Any]:
    """Return the JSON object that a UTF-8 file holds. Raises `error`, naming `where`, where it is none."""
    try:
        document = json.loads(data.decode("utf-8"))
    except ValueError as reason:
        raise error(f"{where}: not a JSON document: {reason}") from reason
    if not isinstance(document, dict):
        raise error(f"{where}: expected a JSON object, got {type(document).__name__}")
    return document


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file. Raises FileError where it is not UTF-8, OSError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: expected UTF-8 text: {error}") from error


def check_writable(path: Path | None) -> None:
    """Raise OSError where a file could not be written, before the work whose result it will hold; None: nothing."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected a file to write, got a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"{path}: cannot be written, or its folder does not exist")


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file. Raises OSError with the file's name, also where the disk is full."""
    with naming(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def naming(output: Path) -> Iterator[None]:
    """Put the name of what is written into errors that come without one: that the disk is full, for example."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(output)) from error
