"""Which model a command means: a program folder, a checkpoint folder, or the tiny checkpoint that ships."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from qwen35_moe.errors import CheckpointError, EngineError
from qwen35_moe.files import check_folder

if TYPE_CHECKING:
    from device_core import Device

    from qwen35_moe.exporter import ExportOptions, OnProgress

PROGRAM = "program.json"
CONFIG = "config.json"


def tiny_model() -> ModuleType:
    """Return the package of the tiny model. Raises CheckpointError, saying how to get it, where it is not installed."""
    try:
        import qwen35_tiny
    except ModuleNotFoundError as error:
        if error.name != "qwen35_tiny":
            raise
        raise CheckpointError(
            "the tiny model that ships with the project is not installed: pip install 'qwen35-moe[tiny]', "
            "or name a program folder or a checkpoint folder"
        ) from None
    return qwen35_tiny


def model_folder(model: Path | None) -> Path:
    """Return the folder of a program or checkpoint. Raises EngineError where it is neither."""
    folder: Path = model or tiny_model().checkpoint_path()
    check_folder(folder, EngineError)
    if not (folder / PROGRAM).is_file() and not (folder / CONFIG).is_file():
        raise EngineError(f"{folder}: neither a program ({PROGRAM}) nor a checkpoint ({CONFIG})")
    return folder


def is_program(folder: Path) -> bool:
    """Return whether the folder holds a program, as opposed to a checkpoint."""
    return (folder / PROGRAM).is_file()


def program_folder(model: Path | None, device: str) -> Path:
    """Return the program folder to run on a device; a checkpoint is exported into the cache first.

    Raises EngineError, before that, where there is no such GPU.
    """
    folder = model_folder(model)
    if is_program(folder):
        return folder
    from qwen35_moe.cache import cached_program

    usable_device(device)
    with export_progress(f"exporting {folder}") as (report, wait):
        return cached_program(folder, default_options(folder, device), on_progress=report, on_wait=wait)


def resolve_device(device: str) -> str:
    """Return the device that ``auto`` stands for: the first GPU, or else the CPU."""
    if device != "auto":
        return device
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def usable_device(device: str) -> "Device":
    """Return the device that a name, or ``auto``, stands for. Raises EngineError where there is no such GPU."""
    from device_core import Device

    from qwen35_moe.engine import check_gpu

    target = Device.parse(resolve_device(device))
    if not target.is_host:
        check_gpu(target)
    return target


def default_options(folder: Path, device: str) -> "ExportOptions":
    """Return how a checkpoint is exported on the fly: with at most 4,096 tokens of context, in int4 for a GPU.

    For the CPU it stays as it is: the operators there dequantize, so int4 would only cost time.
    """
    from qwen35_moe.config import read_config
    from qwen35_moe.exporter import ExportOptions

    target = resolve_device(device)
    context = min(ExportOptions().max_context, read_config(folder).max_position_embeddings)
    return ExportOptions(quant="none" if target == "cpu" else "int4", max_context=context, device=target)


@contextmanager
def export_progress(title: str) -> "Iterator[tuple[OnProgress, Callable[[], None]]]":
    """Show the stages of an export on stderr; gives what `export_checkpoint` reports to, and what tells a wait."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(f"{title}: {stage}", total=total)
            progress.update(tasks[stage], completed=done, total=total)

        def wait() -> None:
            progress.add_task(f"{title}: waiting for another process", total=None)

        yield report, wait
