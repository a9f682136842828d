"""The constants of a module, each once on every device that uses it."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Self

import torch

from device_core.allocator import MAX_ALIGNMENT, allocators
from device_core.buffer import DeviceMemoryBuffer
from device_core.device import Device
from device_core.errors import ProgramError
from device_core.schema import types as t
from device_core.schema.layout import contiguous_strides
from device_core.schema.shards import ShardReader


class ConstantStore:
    """Constants by (name, device). On the host they lie in the mapped file; to a device they are copied once.

    Raises ProgramError where a shard cannot be read and what the allocators raise, after freeing what was allocated.
    """

    def __init__(self, folder: Path, program: t.Program) -> None:
        wanted: dict[str, dict[str, None]] = {}
        for method in program.methods:
            for value in method.values:
                if isinstance(value, t.TensorValue) and isinstance(value.storage, t.Constant):
                    wanted.setdefault(value.storage.name, {})[value.device] = None
        for state in program.state.values():
            if state.initial is not None:
                wanted.setdefault(state.initial, {})["cpu"] = None
        self._tensors: dict[tuple[str, str], torch.Tensor] = {}
        self.uploaded_nbytes = 0
        with ExitStack() as stack:
            for shard in sorted({program.constants[name].shard for name in wanted}):
                with _reader(folder / shard) as reader:
                    for name, devices in wanted.items():
                        if program.constants[name].shard == shard:
                            self._place(name, reader.tensor(name), devices, stack)
            self._buffers = stack.pop_all()

    @property
    def tensors(self) -> Mapping[tuple[str, str], torch.Tensor]:
        """Return the constants by name and device."""
        return MappingProxyType(self._tensors)

    def close(self) -> None:
        """Free them; a second call does nothing."""
        self._tensors.clear()
        self._buffers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, name: str, tensor: torch.Tensor, devices: Mapping[str, None], stack: ExitStack) -> None:
        for text in devices:
            device = Device.parse(text)
            if device.is_host:
                self._tensors[name, text] = tensor
                continue
            buffer = stack.enter_context(DeviceMemoryBuffer.create(tensor.nbytes, device, alignment=MAX_ALIGNMENT))
            copy = buffer.tensor(tensor.dtype, tensor.shape, contiguous_strides(tuple(tensor.shape)))
            if tensor.numel():
                allocators().require(device).copy_host_to_device(copy, tensor, device.index)
            self._tensors[name, text] = copy
            self.uploaded_nbytes += tensor.nbytes


def _reader(path: Path) -> ShardReader:
    try:
        return ShardReader(path)
    except ValueError as error:
        raise ProgramError(path, [str(error)]) from error
