"""Where the bytes of a tensor value lie for given symbols, and the checks that they lie within its storage."""

from collections.abc import Mapping
from dataclasses import dataclass

from device_core.schema.dims import evaluate
from device_core.schema.dtypes import DTYPES
from device_core.schema.types import TensorValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A tensor value with numbers in place of expressions.

    offset_bytes: from the start of its storage. span_bytes: from its first to the end of its last element.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset_bytes: int
    span_bytes: int

    @property
    def end_bytes(self) -> int:
        """Return the end of the last element, from the start of the storage."""
        return self.offset_bytes + self.span_bytes


def layout_of(value: TensorValue, symbols: Mapping[str, int]) -> Layout:
    """Return the layout of `value` for the given symbols.

    Raises ValueError where a size, stride or offset is negative, or the offset is not a multiple of the element size.
    """
    itemsize = DTYPES[value.dtype].itemsize
    sizes = tuple([evaluate(d, symbols) for d in value.sizes])
    strides = tuple([evaluate(d, symbols) for d in value.strides])
    offset = evaluate(value.storage.offset_bytes, symbols)
    if min((*sizes, *strides, offset), default=0) < 0:
        raise ValueError(f"negative size, stride or offset: sizes {sizes}, strides {strides}, offset {offset}")
    if offset % itemsize:
        raise ValueError(f"offset {offset}: expected a multiple of the element size {itemsize}")
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    span = 0 if 0 in sizes else (last + 1) * itemsize
    return Layout(sizes=sizes, strides=strides, offset_bytes=offset, span_bytes=span)


def contiguous_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
