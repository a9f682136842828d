"""The planned memory of a module: made here and nowhere else, freed together."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from device_core.allocator import MAX_ALIGNMENT
from device_core.buffer import DeviceMemoryBuffer
from device_core.device import Device
from device_core.schema.types import Method


class MemoryManager:
    """A device buffer for every planned buffer of every method.

    `io` buffers are a method's own. `scratch` buffers are shared: the k-th one of a method on a device is the same
    memory as the k-th one of every other method there, as large as the largest. Raises what the allocators raise, after
    freeing what was allocated.
    """

    def __init__(self, methods: Sequence[Method]) -> None:
        scratch_nbytes: dict[tuple[str, int], int] = {}
        for method in methods:
            for key, nbytes in _scratch(method):
                scratch_nbytes[key] = max(scratch_nbytes.get(key, 0), nbytes)
        self._planned: dict[str, tuple[DeviceMemoryBuffer, ...]] = {}
        with ExitStack() as stack:
            pools = {
                key: stack.enter_context(_buffer(nbytes, key[0])) for key, nbytes in sorted(scratch_nbytes.items())
            }
            for method in methods:
                keys = iter(_scratch(method))
                self._planned[method.name] = tuple(
                    pools[next(keys)[0]]
                    if planned.kind == "scratch"
                    else stack.enter_context(_buffer(planned.nbytes, planned.device))
                    for planned in method.buffers
                )
            self._buffers = stack.pop_all()

    def planned(self, method: str) -> tuple[DeviceMemoryBuffer, ...]:
        """Return the buffers of a method, by index."""
        return self._planned[method]

    @property
    def devices(self) -> frozenset[Device]:
        """Return the devices that hold planned memory."""
        return frozenset(buffer.device for buffer in self._all())

    @property
    def nbytes(self) -> int:
        """Return the bytes of all planned memory, shared memory counted once."""
        return sum(buffer.nbytes for buffer in self._all())

    def close(self) -> None:
        """Free all of it; a second call does nothing."""
        self._buffers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _all(self) -> list[DeviceMemoryBuffer]:
        return list({id(b): b for buffers in self._planned.values() for b in buffers}.values())


def _buffer(nbytes: int, device: str) -> DeviceMemoryBuffer:
    home = Device.parse(device)
    return DeviceMemoryBuffer.create(nbytes, home, alignment=64 if home.is_host else MAX_ALIGNMENT)


def _scratch(method: Method) -> list[tuple[tuple[str, int], int]]:
    """Return, for each scratch buffer of a method, its device and its rank there, and its size."""
    ranks: dict[str, int] = {}
    found = []
    for planned in method.buffers:
        if planned.kind == "scratch":
            rank = ranks.get(planned.device, 0)
            ranks[planned.device] = rank + 1
            found.append(((planned.device, rank), planned.nbytes))
    return found
