"""Files that a command reads and writes, with errors that name them."""

import os
from pathlib import Path

from qwen35_moe.errors import Qwen35MoeError


class FileError(Qwen35MoeError):
    """A file that holds something else than text in UTF-8."""


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
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
