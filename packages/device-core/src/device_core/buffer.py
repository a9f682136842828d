"""Buffers that own device memory."""

from collections.abc import Sequence
from typing import NoReturn, Self

import torch

from device_core.allocator import DEFAULT_ALIGNMENT, DeviceAllocator, allocators
from device_core.device import Device
from device_core.errors import ClosedError


class DeviceMemoryBuffer:
    """The owner of one allocation: a context manager that frees it once, and that cannot be copied."""

    def __init__(self, memory: torch.Tensor, device: Device, allocator: DeviceAllocator) -> None:
        """Take over `memory`; use `create` to allocate."""
        self._memory: torch.Tensor | None = memory
        self._allocator = allocator
        self.device = device
        self.nbytes = memory.numel()

    @classmethod
    def create(cls, nbytes: int, device: Device, *, alignment: int = DEFAULT_ALIGNMENT) -> Self:
        """Allocate memory on `device`; raises what the device's allocator raises."""
        allocator = allocators().require(device)
        return cls(allocator.allocate(nbytes, device.index, alignment=alignment), device, allocator)

    @property
    def memory(self) -> torch.Tensor:
        """Return the memory: uint8, (nbytes,). Raises ClosedError when it was freed."""
        if self._memory is None:
            raise ClosedError(f"a buffer of {self.nbytes:,} bytes on {self.device} was freed")
        return self._memory

    @property
    def closed(self) -> bool:
        """Return whether the memory was freed."""
        return self._memory is None

    def tensor(
        self, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], *, offset_bytes: int = 0
    ) -> torch.Tensor:
        """Return a tensor over a part of the memory; strides are in elements."""
        return view_bytes(self.memory, dtype, sizes, strides, offset_bytes=offset_bytes)

    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        memory, self._memory = self._memory, None
        if memory is not None:
            self._allocator.deallocate(memory, self.device.index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Missing where `create` failed before there was anything to own.
        if getattr(self, "_memory", None) is not None:
            self.close()

    def __copy__(self) -> NoReturn:
        raise TypeError("a DeviceMemoryBuffer owns its memory and cannot be copied")

    def __deepcopy__(self, _: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()


def view_bytes(
    memory: torch.Tensor, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], *, offset_bytes: int = 0
) -> torch.Tensor:
    """Return a tensor over bytes of `memory`, a contiguous tensor; nothing is copied.

    Raises ValueError where its elements are not all within the memory or not aligned to their size.
    """
    flat = memory.view(torch.uint8) if memory.dim() == 1 else memory.reshape(-1).view(torch.uint8)
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    span = 0 if 0 in sizes else (last + 1) * dtype.itemsize
    if not 0 <= offset_bytes <= offset_bytes + span <= flat.numel() or offset_bytes % dtype.itemsize:
        raise ValueError(
            f"tensor of {dtype}: bytes {offset_bytes} to {offset_bytes + span} of {flat.numel()}, "
            f"expected them inside and a multiple of {dtype.itemsize}"
        )
    return flat[offset_bytes : offset_bytes + span].view(dtype).as_strided(tuple(sizes), tuple(strides))
