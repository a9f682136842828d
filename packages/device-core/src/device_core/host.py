"""The allocator of host memory."""

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from device_core.allocator import DEFAULT_ALIGNMENT, DeviceAllocator
from device_core.device import DeviceType
from device_core.errors import OutOfMemoryError

_LARGE_NBYTES = 256 * 1024**2


class HostAllocator(DeviceAllocator):
    """Host memory from torch's allocator. Copies between host and device are copies within the host."""

    @property
    def device_type(self) -> DeviceType:
        """Return CPU."""
        return DeviceType.CPU

    @property
    def device_count(self) -> int:
        """Return 1."""
        return 1

    def allocate(self, nbytes: int, index: int, *, alignment: int = DEFAULT_ALIGNMENT) -> torch.Tensor:
        """Return new memory; see `DeviceAllocator.allocate`.

        A large allocation is refused where the system has not that much available, since the system itself would
        grant it and fail when it is written to.
        """
        self.check(nbytes, index, alignment)
        free = _available_nbytes() if nbytes >= _LARGE_NBYTES else None
        if free is not None and nbytes > free:
            raise OutOfMemoryError("cpu", nbytes, free)
        # torch aligns host memory to 64 bytes; more than that takes room to move the start.
        extra = alignment if alignment > 64 else 0
        try:
            memory = torch.empty(nbytes + extra, dtype=torch.uint8)
        except RuntimeError as error:
            raise OutOfMemoryError("cpu", nbytes, free) from error
        start = -memory.data_ptr() % alignment if extra else 0
        return memory[start : start + nbytes] if extra else memory

    def deallocate(self, memory: torch.Tensor, index: int) -> None:
        """Do nothing: the memory is free when the last tensor over it is gone."""

    def copy_host_to_device(self, destination: torch.Tensor, source: torch.Tensor, index: int) -> None:
        """Copy within the host."""
        destination.copy_(source)

    def copy_device_to_host(self, destination: torch.Tensor, source: torch.Tensor, index: int) -> None:
        """Copy within the host."""
        destination.copy_(source)

    def guard(self, index: int) -> AbstractContextManager[object]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def synchronize(self, index: int) -> None:
        """Do nothing: the host is done when a call returns."""


def _available_nbytes() -> int | None:
    """Return what Linux says is available, or None on other systems."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return None
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
