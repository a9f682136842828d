"""What is known of a method without loading its weights."""

from dataclasses import dataclass
from typing import Literal, Self

from device_core.device import Device
from device_core.schema import types as t
from device_core.schema.layout import layout_of

Kind = Literal["tensor", "symint", "scalar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMeta:
    """One input or output.

    sizes, strides: numbers or expressions over the method's symbols. nbytes: at the symbols' upper bounds.
    supplied: whether the caller passes the tensor, as opposed to memory of the method. For what is not a tensor dtype,
    device, sizes and strides are None or empty, and nbytes 0.
    """

    name: str
    kind: Kind
    dtype: str | None
    sizes: tuple[t.Dim, ...]
    strides: tuple[t.Dim, ...]
    device: Device | None
    nbytes: int
    supplied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferMeta:
    """One planned buffer; its index is its place in the list."""

    nbytes: int
    device: Device
    kind: t.BufferKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodMeta:
    """Inputs, outputs, memory, operators and backends of a method."""

    name: str
    symbols: tuple[t.Symbol, ...]
    inputs: tuple[ValueMeta, ...]
    outputs: tuple[ValueMeta, ...]
    buffers: tuple[BufferMeta, ...]
    operators: tuple[str, ...]
    backends: tuple[str, ...]
    constants: tuple[str, ...]
    state: tuple[str, ...]
    instruction_count: int

    @classmethod
    def of(cls, method: t.Method) -> Self:
        """Read a method."""
        high = {symbol.name: symbol.max for symbol in method.symbols}
        storages = [value.storage for value in method.values if isinstance(value, t.TensorValue)]
        return cls(
            name=method.name,
            symbols=method.symbols,
            inputs=tuple(_value_meta(method, i, high) for i in method.inputs),
            outputs=tuple(_value_meta(method, i, high) for i in method.outputs),
            buffers=tuple(
                BufferMeta(nbytes=b.nbytes, device=Device.parse(b.device), kind=b.kind) for b in method.buffers
            ),
            operators=method.operators,
            backends=tuple(sorted({delegate.backend for delegate in method.delegates})),
            constants=tuple(dict.fromkeys(s.name for s in storages if isinstance(s, t.Constant))),
            state=tuple(dict.fromkeys(s.name for s in storages if isinstance(s, t.State))),
            instruction_count=len(method.instructions),
        )

    def uses_backend(self, name: str) -> bool:
        """Return whether a region of the method belongs to the backend of that name."""
        return name in self.backends


def _value_meta(method: t.Method, index: int, high: dict[str, int]) -> ValueMeta:
    value = method.values[index]
    if not isinstance(value, t.TensorValue):
        kind: Kind = "symint" if isinstance(value, t.SymIntValue) else "scalar"
        return ValueMeta(
            name=value.name, kind=kind, dtype=None, sizes=(), strides=(), device=None, nbytes=0, supplied=False
        )
    return ValueMeta(
        name=value.name,
        kind="tensor",
        dtype=value.dtype,
        sizes=value.sizes,
        strides=value.strides,
        device=Device.parse(value.device),
        nbytes=layout_of(value, high).span_bytes,
        supplied=isinstance(value.storage, t.Bound),
    )
