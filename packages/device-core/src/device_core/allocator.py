"""The interface of device allocators, and the registry that has one for each device type."""

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final

import torch

from device_core.device import Device, DeviceType
from device_core.errors import DeviceError, RegistrationError

DEFAULT_ALIGNMENT: Final = 64
MAX_ALIGNMENT: Final = 256


class DeviceAllocator(ABC):
    """Memory of the devices of one type.

    An allocation is a flat uint8 tensor on the device; everything else is views of it, made without copying. Memory is
    not initialized. Methods may be called from any thread.
    """

    @property
    @abstractmethod
    def device_type(self) -> DeviceType:
        """Return the type of the devices."""

    @property
    @abstractmethod
    def device_count(self) -> int:
        """Return how many devices there are; indices are below it."""

    @abstractmethod
    def allocate(self, nbytes: int, index: int, *, alignment: int = DEFAULT_ALIGNMENT) -> torch.Tensor:
        """Return new memory: uint8, (nbytes,), whose address is a multiple of `alignment`.

        Raises DeviceError where there is no such device or the alignment is not a power of two up to 256, and
        OutOfMemoryError where the device has not enough memory.
        """

    @abstractmethod
    def deallocate(self, memory: torch.Tensor, index: int) -> None:
        """Give memory back that `allocate` returned.

        The allocator keeps no reference; views that others still hold stay valid, and the bytes are free when the last
        one is gone. Raises MemoryAccessError where the allocator can tell that the memory is not its own.
        """

    @abstractmethod
    def copy_host_to_device(self, destination: torch.Tensor, source: torch.Tensor, index: int) -> None:
        """Copy a host tensor into a device tensor of the same dtype and sizes, in order with the current stream.

        When it returns, `source` may be changed.
        """

    @abstractmethod
    def copy_device_to_host(self, destination: torch.Tensor, source: torch.Tensor, index: int) -> None:
        """Copy a device tensor into a host tensor of the same dtype and sizes, in order with the current stream.

        When it returns, `destination` holds the data.
        """

    @abstractmethod
    def guard(self, index: int) -> AbstractContextManager[object]:
        """Return a context in which that device is the current one of its type."""

    @abstractmethod
    def synchronize(self, index: int) -> None:
        """Wait until the device has done all that was asked of it."""

    def check(self, nbytes: int, index: int, alignment: int) -> None:
        """Raise DeviceError unless such an allocation makes sense."""
        if not 0 <= index < self.device_count:
            kind = self.device_type.name.lower()
            raise DeviceError(f"{kind}:{index}: there are {self.device_count} devices of type {kind}")
        if nbytes < 0:
            raise DeviceError(f"allocation: expected 0 bytes or more, got {nbytes}")
        if not (1 <= alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0):
            raise DeviceError(f"alignment: expected a power of two up to {MAX_ALIGNMENT}, got {alignment}")


class DeviceAllocatorRegistry:
    """At most one allocator for each device type."""

    def __init__(self) -> None:
        self._allocators: dict[DeviceType, DeviceAllocator] = {}

    def register(self, allocator: DeviceAllocator) -> None:
        """Add an allocator. Raises RegistrationError where its type has one already, or it is not one."""
        if not isinstance(allocator, DeviceAllocator):
            raise RegistrationError(f"allocator: expected a DeviceAllocator, got {allocator!r}")
        if allocator.device_type in self._allocators:
            raise RegistrationError(f"an allocator for {allocator.device_type.name.lower()} is already registered")
        self._allocators[allocator.device_type] = allocator

    def get(self, device_type: DeviceType) -> DeviceAllocator | None:
        """Return the allocator of a type, or None."""
        return self._allocators.get(device_type)

    def require(self, device: Device) -> DeviceAllocator:
        """Return the allocator of a device. Raises DeviceError where there is no such device on this machine."""
        allocator = self.get(device.type)
        if allocator is None:
            raise DeviceError(f"{device}: this machine has no device of type {device.type.name.lower()}")
        allocator.check(0, device.index, 1)
        return allocator

    @contextlib.contextmanager
    def replaced(self, allocator: DeviceAllocator) -> Iterator[None]:
        """Put `allocator` in the place of the one of its type, for the duration of a block."""
        before = self._allocators.get(allocator.device_type)
        self._allocators[allocator.device_type] = allocator
        try:
            yield
        finally:
            del self._allocators[allocator.device_type]
            if before is not None:
                self._allocators[allocator.device_type] = before


@functools.cache
def allocators() -> DeviceAllocatorRegistry:
    """Return the registry of this process, which starts with the host and, where there is one, CUDA."""
    from device_core.cuda import CudaAllocator
    from device_core.host import HostAllocator

    registry = DeviceAllocatorRegistry()
    registry.register(HostAllocator())
    if torch.cuda.is_available():
        registry.register(CudaAllocator())
    return registry
