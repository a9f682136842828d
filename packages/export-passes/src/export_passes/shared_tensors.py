"""Which tensors of several exported programs are one constant: by identity, then by fully qualified name."""

from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind, InputSpec

from export_passes.errors import ConstantConflictError, UnsupportedError

_TENSOR_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class SharedTensors:
    """Names the parameters, buffers and lifted constants of all methods.

    One tensor reached under two names (tied weights) is one constant under the first. One name with two tensors: equal
    dtype, sizes and bytes make one constant (tensors without bytes, fake or on `meta`, are taken to be equal); a lifted
    constant that differs is kept apart as `<method>.<name>`; a parameter or buffer that differs is an error.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._by_identity: dict[tuple[object, ...], str] = {}

    def name(self, method: str, spec: InputSpec, tensor: object) -> str:
        """Return the constant's name for a placeholder that is a parameter, buffer or lifted constant."""
        target = str(spec.target)
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedError(f"constant {target!r}: expected a tensor, got {type(tensor).__name__}")
        identity = (
            tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        )  # fmt: skip
        if identity in self._by_identity:
            return self._by_identity[identity]
        name = target
        if name in self.tensors:
            difference = _difference(self.tensors[name], tensor)
            if difference and spec.kind is not InputKind.CONSTANT_TENSOR:
                raise ConstantConflictError(
                    f"{spec.kind.name.lower()} {name!r} of method {method!r} differs from that of an earlier method: "
                    f"{difference}; methods share parameters and buffers by name"
                )
            if difference:
                name = f"{method}.{target}"
        self.tensors.setdefault(name, tensor)
        self._by_identity[identity] = name
        return name


def overlapping_state(tensors: Mapping[str, torch.Tensor], state: set[str]) -> list[tuple[str, str]]:
    """Return pairs of a state and another constant that share storage without being the same tensor."""
    by_storage: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    return [(a, b) for names in by_storage.values() for a in names if a in state for b in names if a != b]


def is_tensor_kind(spec: InputSpec) -> bool:
    """Return whether a placeholder is a parameter, buffer or lifted constant."""
    return spec.kind in _TENSOR_KINDS


def has_bytes(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has content that can be looked at."""
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def _difference(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.dtype != other.dtype:
        return f"{other.dtype}, not {one.dtype}"
    if one.shape != other.shape:
        return f"sizes {tuple(other.shape)}, not {tuple(one.shape)}"
    if has_bytes(one) and has_bytes(other) and not _equal_bytes(one, other):
        return "other values"
    return ""


def _equal_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare as bytes, so that NaN equals itself and -0.0 differs from 0.0."""
    a, b = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(a, b)
