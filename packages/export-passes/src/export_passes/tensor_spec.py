"""`TensorSpec`: what is known of every tensor of a graph before it runs."""

from dataclasses import dataclass

import torch
from device_core.device import HOST, Device
from device_core.schema.types import Dim

from export_passes.symbols import Size, SymbolTable, expression_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor.

    strides: in elements. offset_bytes: from the start of the tensor whose storage it views, 0 where it has its own.
    span_nbytes: bytes from its first to the end of its last element, at the largest sizes.
    is_contiguous: whether its strides are those of a row-major tensor without gaps.
    """

    dtype: torch.dtype
    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset_bytes: Dim = 0
    span_nbytes: int
    is_contiguous: bool
    device: Device = HOST

    @classmethod
    def of(cls, tensor: torch.Tensor, table: SymbolTable, *, base: torch.Tensor | None = None) -> "TensorSpec":
        """Describe `tensor`, a view of `base`'s storage where one is given; it is on the host.

        Raises UnsupportedError where a size does not follow from the sizes of the inputs.
        """
        sizes = tuple(table.dim(size) for size in tensor.shape)
        strides = tuple(table.dim(stride) for stride in tensor.stride())
        offset: Dim = 0
        if base is not None:
            nbytes = tensor.storage_offset() * tensor.itemsize - base.storage_offset() * base.itemsize
            offset = table.dim(nbytes)
        upper = [table.upper(size) for size in sizes]
        last = sum((n - 1) * table.upper(stride) for n, stride in zip(upper, strides, strict=True))
        return cls(
            dtype=tensor.dtype,
            sizes=sizes,
            strides=strides,
            offset_bytes=offset,
            span_nbytes=0 if 0 in upper else (last + 1) * tensor.itemsize,
            is_contiguous=_is_contiguous(tensor.shape, tensor.stride()),
        )


def _is_contiguous(sizes: tuple[Size, ...], strides: tuple[Size, ...]) -> bool:
    """Compare expressions, so that no size is taken to be what it happened to be at export."""
    expected = expression_of(1)
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if expression_of(stride) != expected:
            return False
        expected = expected * expression_of(size)
    return True
