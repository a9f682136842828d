"""A recording fake device on host memory, for tests of placement on machines without a GPU.

It stands in for CUDA: its tensors say `cuda:0`, operators run on the host memory below them, and whatever would be
wrong on a real device is an error: mixing devices, reading elements from the host, freeing twice, leaking.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Literal, Self

import torch

from device_core.allocator import DEFAULT_ALIGNMENT, DeviceAllocator, allocators
from device_core.device import DeviceType
from device_core.errors import MemoryAccessError, OutOfMemoryError
from device_core.testing.device_tensor import DeviceTensor

POISON = 0xFF
"""What new memory is filled with: NaN in every float format, -1 in signed integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One copy between the host and a device."""

    direction: Literal["h2d", "d2h"]
    index: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRun:
    """An operator, the device its tensors are on, and the device that was current."""

    operator: str
    index: int
    current: int


class RecordingDevice(DeviceAllocator):
    """Fake CUDA devices 0 to `device_count` - 1.

    As a context manager it takes the place of CUDA's allocator and, when its block ends without an error, raises
    MemoryAccessError where memory was leaked. `transfers`, `operators` and the counts of allocations tell what
    happened; `forget` starts them anew.
    """

    def __init__(self, device_count: int = 2, *, capacity_nbytes: int | None = None) -> None:
        self._device_count = device_count
        self._capacity_nbytes = capacity_nbytes
        self._live: dict[int, tuple[DeviceTensor, int]] = {}
        self._scope: ExitStack | None = None
        self._current = [0]
        self.forget()

    def forget(self) -> None:
        """Start all counts anew; live memory stays known."""
        self.transfers: list[Transfer] = []
        self.operators: Counter[OperatorRun] = Counter()
        self.allocations = 0
        self.deallocations = 0

    @property
    def device_type(self) -> DeviceType:
        """Return CUDA."""
        return DeviceType.CUDA

    @property
    def device_count(self) -> int:
        """Return how many devices it plays."""
        return self._device_count

    def live_nbytes(self, index: int | None = None) -> int:
        """Return the bytes that are allocated and not freed, on one device or on all."""
        return sum(memory.numel() for memory, home in self._live.values() if index in (None, home))

    def transferred(self, direction: Literal["h2d", "d2h"]) -> tuple[int, int]:
        """Return the number of copies in one direction and their bytes."""
        sizes = [t.nbytes for t in self.transfers if t.direction == direction]
        return len(sizes), sum(sizes)

    def allocate(self, nbytes: int, index: int, *, alignment: int = DEFAULT_ALIGNMENT) -> torch.Tensor:
        """Return new memory, poisoned."""
        self.check(nbytes, index, alignment)
        used = self.live_nbytes(index)
        if self._capacity_nbytes is not None and used + nbytes > self._capacity_nbytes:
            raise OutOfMemoryError(f"cuda:{index}", nbytes, self._capacity_nbytes - used)
        memory = DeviceTensor(torch.full((nbytes,), POISON, dtype=torch.uint8), self, index)
        self._live[id(memory)] = (memory, index)
        self.allocations += 1
        return memory

    def deallocate(self, memory: torch.Tensor, index: int) -> None:
        """Free memory. Raises MemoryAccessError where it is not an allocation of that device, or was freed."""
        if not isinstance(memory, DeviceTensor) or memory.owner is not self:
            raise MemoryAccessError(f"deallocate: expected memory of this allocator, got {type(memory).__name__}")
        if memory.freed:
            raise MemoryAccessError(
                f"deallocate: {memory.numel()} bytes on cuda:{memory.device_index} were freed before"
            )
        if id(memory) not in self._live:
            raise MemoryAccessError("deallocate: expected what allocate returned, got a tensor over it")
        if memory.device_index != index:
            raise MemoryAccessError(f"deallocate: expected memory of cuda:{index}, got cuda:{memory.device_index}")
        del self._live[id(memory)]
        memory.freed = True
        self.deallocations += 1

    def copy_host_to_device(self, destination: torch.Tensor, source: torch.Tensor, index: int) -> None:
        """Copy and record."""
        self._check_copy("h2d", destination, source, index)
        self.transfers.append(Transfer(direction="h2d", index=index, nbytes=source.nbytes))
        destination.host.copy_(source)  # type: ignore[attr-defined]  # checked above

    def copy_device_to_host(self, destination: torch.Tensor, source: torch.Tensor, index: int) -> None:
        """Copy and record."""
        self._check_copy("d2h", source, destination, index)
        self.transfers.append(Transfer(direction="d2h", index=index, nbytes=source.nbytes))
        destination.copy_(source.host)  # type: ignore[attr-defined]  # checked above

    @contextlib.contextmanager
    def _guarded(self, index: int) -> Iterator[None]:
        self._current.append(index)
        try:
            yield
        finally:
            self._current.pop()

    def guard(self, index: int) -> AbstractContextManager[object]:
        """Return a context in which a device is current."""
        return self._guarded(index)

    @property
    def current(self) -> int:
        """Return the index of the current device."""
        return self._current[-1]

    def record(self, operator: str, index: int) -> None:
        """Count an operator that ran on a device."""
        self.operators[OperatorRun(operator=operator, index=index, current=self.current)] += 1

    def synchronize(self, index: int) -> None:
        """Do nothing: operators are done when they return."""

    def check_leaks(self) -> None:
        """Raise MemoryAccessError where memory was not freed."""
        if self._live:
            sizes = ", ".join(f"{m.numel():,} bytes on cuda:{i}" for m, i in list(self._live.values())[:10])
            raise MemoryAccessError(f"{len(self._live)} allocations leaked: {sizes}")

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(allocators().replaced(self))
            self._scope = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._scope is not None:
            self._scope.close()
            self._scope = None
        if kind is None:
            self.check_leaks()

    def _check_copy(self, direction: str, on_device: torch.Tensor, on_host: torch.Tensor, index: int) -> None:
        if not isinstance(on_device, DeviceTensor) or on_device.owner is not self or on_device.device_index != index:
            raise MemoryAccessError(f"{direction}: expected a tensor of cuda:{index}, got one on {on_device.device}")
        if isinstance(on_host, DeviceTensor) or on_host.device.type != "cpu":
            raise MemoryAccessError(f"{direction}: expected a tensor on the host, got one on {on_host.device}")
        if on_device.shape != on_host.shape or on_device.dtype != on_host.dtype:
            raise MemoryAccessError(
                f"{direction}: device side {on_device.dtype} {tuple(on_device.shape)} and host side {on_host.dtype} "
                f"{tuple(on_host.shape)} differ"
            )
