"""The errors of the package; all derive from `DeviceCoreError`."""

from collections.abc import Sequence


class DeviceCoreError(Exception):
    """Base of every error that this package raises on its own account."""


class DeviceError(DeviceCoreError, ValueError):
    """A device that does not exist, is written wrongly, or cannot do what was asked."""


class RegistrationError(DeviceCoreError):
    """A second registration where one is allowed, or one of the wrong kind."""


class MemoryAccessError(DeviceCoreError):
    """A use of device memory that would be undefined: freed, foreign, out of range, or from the wrong device."""


class OutOfMemoryError(DeviceCoreError, MemoryError):
    """An allocation that the device cannot satisfy.

    nbytes: bytes asked for. nbytes_free: bytes free at that moment, or None where the device cannot say.
    """

    def __init__(self, device: str, nbytes: int, nbytes_free: int | None) -> None:
        free = "unknown" if nbytes_free is None else f"{nbytes_free:,}"
        super().__init__(f"out of memory on {device}: asked for {nbytes:,} bytes, free: {free}")
        self.nbytes = nbytes
        self.nbytes_free = nbytes_free


class ProgramError(DeviceCoreError):
    """A program folder that cannot be used; `problems` lists everything that is wrong with it."""

    def __init__(self, where: object, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        shown = "".join(f"\n  - {problem}" for problem in self.problems[:50])
        more = f"\n  … and {len(self.problems) - 50} more" if len(self.problems) > 50 else ""
        plural = "problem" if len(self.problems) == 1 else "problems"
        super().__init__(f"{where}: {len(self.problems)} {plural}:{shown}{more}")


class MissingOperatorError(ProgramError):
    """Operators or backends that the program calls and that are not registered; all of them."""


class InputError(DeviceCoreError, ValueError):
    """An argument of a method that does not fit its declaration."""


class ClosedError(DeviceCoreError):
    """A use of a module, session, buffer or capture after it was closed."""


class CaptureError(DeviceCoreError):
    """A method or function that cannot be captured as a graph, or whose capture failed."""
