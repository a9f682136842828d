"""Programs that were exported on the fly, kept in a cache folder under a key of everything they were made from."""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata, util
from pathlib import Path

from device_core.schema.codec import partial_folders

from qwen35_moe.assets import ASSETS
from qwen35_moe.errors import CheckpointError
from qwen35_moe.exporter import ExportOptions, OnProgress, export_checkpoint

PACKAGES = ("device-core", "export-passes", "cuda-kernels", "qwen35-moe")
_PIECE_NBYTES = 1 << 24


def cache_folder() -> Path:
    """Return ``$QWEN35_MOE_CACHE``, or ``qwen35-moe`` in the user's cache folder."""
    if chosen := os.environ.get("QWEN35_MOE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qwen35-moe"


def cached_program(
    checkpoint: Path, options: ExportOptions, *, on_progress: OnProgress | None = None, on_wait: Callable[[], None]
) -> Path:
    """Return the program folder of a checkpoint folder, exporting it when the cache does not hold it.

    The key is a digest of the checkpoint's bytes, the options, and version and code of the packages that export it. Of
    two processes that start together one exports; the other calls ``on_wait``, waits, and uses what it made. A process
    that dies on the way leaves nothing behind under the folder's name, and what it left aside is removed by the next.
    """
    report = on_progress or (lambda stage, done, total: None)
    folder = cache_folder() / f"{_readable(checkpoint.resolve().name)}-{program_key(checkpoint, options, report)}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock"), on_wait):
        if not folder.is_dir():
            _sweep(folder)
            export_checkpoint(checkpoint, folder, options, on_progress)
    return folder


def program_key(checkpoint: Path, options: ExportOptions, on_progress: OnProgress) -> str:
    """Return the digest that names the program of this checkpoint in the cache.

    Progress is told as stage ``read``, in bytes.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr(sorted(asdict(options).items())).encode())
    for package in PACKAGES:
        digest.update(f"{package} {metadata.version(package)}".encode())
        _add_code(digest, package.replace("-", "_"))
    files = sorted(path for path in checkpoint.iterdir() if path.suffix == ".safetensors" or path.name in _READ)
    if not any(path.suffix == ".safetensors" for path in files):
        raise CheckpointError(f"{checkpoint}: there is no .safetensors file in it")
    total, done = sum(path.stat().st_size for path in files), 0
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with path.open("rb") as file:
            while piece := file.read(_PIECE_NBYTES):
                digest.update(piece)
                done += len(piece)
                on_progress("read", done, total)
    return digest.hexdigest()


_READ = {*ASSETS, "model.safetensors.index.json"}


def _add_code(digest: hashlib.blake2b, module: str) -> None:
    """Add the sources of a package: a program made by other code is another program, whatever the version says."""
    spec = util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        digest.update(path.read_bytes())


def _sweep(folder: Path) -> None:
    """Remove what exports of `folder` that were killed have left; its lock is held, so none of them runs."""
    for left in partial_folders(folder):
        shutil.rmtree(left)


def _readable(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)[:40] or "model"


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the exclusive lock of a file; the system releases it when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
