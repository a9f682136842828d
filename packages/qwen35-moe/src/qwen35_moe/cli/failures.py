"""How failures are told: one line on stderr and an exit code; only our own faults have a traceback."""

import sys

INTERRUPTED = 130
MISTAKE = 2

_FAMILIES = (
    ("qwen35_moe.errors", "Qwen35MoeError"),
    ("device_core", "DeviceCoreError"),
    ("export_passes.errors", "ExportError"),
)
"""The errors by which the packages tell a user what is wrong, by module and name."""


def exit_code_of(error: BaseException) -> int | None:
    """Tell an error on stderr and return the exit code; None for one that is not the user's to mend."""
    name = type(error).__name__
    if isinstance(error, KeyboardInterrupt) or name == "Abort":
        return tell_interrupt()
    if name == "Exit":
        return int(getattr(error, "exit_code", 0))
    if hasattr(error, "format_message"):  # the command line itself is wrong
        tell(error.format_message())
        return MISTAKE
    if isinstance(error, OSError) and error.strerror is not None:
        tell(error.strerror if error.filename is None else f"{error.filename}: {error.strerror}")
        return MISTAKE
    if isinstance(error, OSError | UnicodeDecodeError) or _is_told(error):
        tell(str(error))
        return MISTAKE
    return None


def tell_interrupt() -> int:
    """Say so on a line of its own, since output may have stopped within one; return the exit code."""
    print("\ninterrupted", file=sys.stderr)
    return INTERRUPTED


def tell(message: str) -> None:
    """Write an error as one line."""
    print("error: " + " ".join(message.split()), file=sys.stderr)


def _is_told(error: BaseException) -> bool:
    # Only modules that are loaded can have raised: nothing heavy is imported to tell an error.
    families = (getattr(sys.modules[module], name) for module, name in _FAMILIES if module in sys.modules)
    return isinstance(error, tuple(families))
