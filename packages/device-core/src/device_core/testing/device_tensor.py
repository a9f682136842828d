"""Tensors of the recording fake device: operators run on the host memory below them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from device_core import copy_ops
from device_core.errors import MemoryAccessError

if TYPE_CHECKING:
    from device_core.testing.recording_device import RecordingDevice

_READS_OUT = {"aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::is_nonzero", "aten::allclose"}


class DeviceTensor(torch.Tensor):
    """A tensor of a `RecordingDevice`. `host` is the host memory below it, for tests to look at."""

    host: torch.Tensor
    owner: "RecordingDevice"
    device_index: int
    freed: bool

    @staticmethod
    def __new__(cls, host: torch.Tensor, owner: "RecordingDevice", index: int) -> "DeviceTensor":
        """Wrap `host`."""
        # To torch itself it is a meta tensor, whose elements nothing can reach; a tensor that said "cuda" would make
        # torch look for a driver.
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=torch.device("meta"),
        )  # fmt: skip
        made.host, made.owner, made.device_index, made.freed = host, owner, index, False
        return made

    def __init__(self, *_: object) -> None:
        """Do nothing; `__new__` has done it."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return the device that the tensor plays to be on."""
        return torch.device("cuda", self.device_index)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Return True."""
        return True

    def data_ptr(self) -> int:
        """Return the address on the host: it orders tensors as addresses on a device would."""
        return self.host.data_ptr()

    def __repr__(self) -> str:  # type: ignore[override]  # without contents
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    def _resized(self, *args: Any, **kwargs: Any) -> "DeviceTensor":
        self.host.resize_(*args, **kwargs)
        with torch._C._DisableTorchDispatch():
            self.as_strided_(self.host.size(), self.host.stride())
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls it with these defaults missing
        cls, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator on the host memory below its arguments."""
        kwargs = dict(kwargs or {})
        name = function._schema.name
        if name.startswith(copy_ops.NAMESPACE + "::") and function._overloadname == "out":
            copy = copy_ops.h2d_out if name.endswith("h2d") else copy_ops.d2h_out
            return copy(*args, **kwargs)
        home = _home(name, [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)])
        if "device" in kwargs and kwargs["device"] is not None:
            if torch.device(kwargs["device"]) != home.device:
                raise MemoryAccessError(
                    f"{name}: goes from {home.device} to {kwargs['device']} without a copy operator"
                )
            kwargs["device"] = torch.device("cpu")
        home.owner.record(name, home.device_index)
        wrappers: dict[int, DeviceTensor] = {}

        def unwrap(x: Any) -> Any:
            if isinstance(x, DeviceTensor):
                wrappers[id(x.host)] = x
                return x.host
            return x

        if name == "aten::resize_":
            return args[0]._resized(*args[1:], **kwargs)
        result = function(*tree_map(unwrap, tuple(args)), **tree_map(unwrap, kwargs))
        for wrapper in wrappers.values():
            if wrapper.shape != wrapper.host.shape or wrapper.stride() != wrapper.host.stride():
                raise MemoryAccessError(f"{name}: changed sizes {tuple(wrapper.shape)} to {tuple(wrapper.host.shape)}")

        def wrap(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            return wrappers[id(x)] if id(x) in wrappers else DeviceTensor(x, home.owner, home.device_index)

        return tree_map(wrap, result)


def _home(name: str, tensors: Sequence[torch.Tensor]) -> DeviceTensor:
    """Return a tensor that says where an operator runs. Raises MemoryAccessError where it may not run at all."""
    ours = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    first = ours[0]
    if name in _READS_OUT:
        raise MemoryAccessError(f"{name}: reads elements of a tensor on {first.device} from the host")
    for tensor in tensors:
        if not isinstance(tensor, DeviceTensor) and tensor.is_meta:
            raise MemoryAccessError(f"{name}: got a number that torch made for {first.device} by itself")
        # As on a real device, a number in a host tensor without dimensions may be an argument.
        if not isinstance(tensor, DeviceTensor) and tensor.dim() > 0:
            raise MemoryAccessError(f"{name}: mixes tensors on {first.device} and on the host")
        if isinstance(tensor, DeviceTensor) and (
            tensor.device_index != first.device_index or tensor.owner is not first.owner
        ):
            raise MemoryAccessError(f"{name}: mixes tensors on {first.device} and {tensor.device}")
    return first
