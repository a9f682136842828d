"""What must hold of the values of a method: where tensors get their bytes, what lists hold, which symbols occur."""

import math
from collections.abc import Iterator

from device_core.schema import types as t
from device_core.schema.dims import Interval, bounds, evaluate, symbols_of
from device_core.schema.dtypes import itemsize
from device_core.schema.layout import Layout, layout_of

BUFFER_SLACK = 4096
"""A buffer may end this many bytes after its last tensor and not more: it says honestly what it needs."""


def value_problems(method: t.Method, program: t.Program) -> list[str]:
    """Return what is wrong with the values of a method whose tables are right.

    Layouts are tried at both ends of the symbols' ranges; linking checks the sizes of a call again.
    """
    problems = list(_reference_problems(method, program))
    if problems:
        return problems
    ends = [{s.name: s.min for s in method.symbols}, {s.name: s.max for s in method.symbols}]
    buffer_ends = [0] * len(method.buffers)
    for symbols in ends if ends[0] != ends[1] else ends[:1]:
        for i, value in enumerate(method.values):
            where = f"value {i} ({value.name})"
            try:
                if isinstance(value, t.SymIntValue):
                    evaluate(value.expression, symbols)
                elif isinstance(value, t.TensorValue):
                    layout = layout_of(value, symbols)
                    problems += _fit_problems(where, value, layout, capacity(value, method, program, symbols))
                    if isinstance(value.storage, t.Planned):
                        buffer = value.storage.buffer
                        buffer_ends[buffer] = max(buffer_ends[buffer], layout.end_bytes)
            except ValueError as error:
                problems.append(f"{where}: {error}")
    if not problems:
        problems += _slack_problems(method, buffer_ends)
    return list(dict.fromkeys(problems))


def capacity(value: t.TensorValue, method: t.Method, program: t.Program, symbols: dict[str, int]) -> int:
    """Return the bytes of the storage of `value` for the given symbols."""
    match value.storage:
        case t.Planned(buffer=buffer):
            return method.buffers[buffer].nbytes
        case t.Constant(name=name):
            return spec_nbytes(program.constants[name])
        case t.State(name=name):
            return spec_nbytes(program.state[name])
        case t.Bound(value=base):
            owner = method.values[base]
            assert isinstance(owner, t.TensorValue)
            return layout_of(owner, symbols).span_bytes


def spec_nbytes(spec: t.ConstantSpec | t.StateSpec) -> int:
    """Return the bytes of a constant or state."""
    return math.prod(spec.sizes) * itemsize(spec.dtype)


def _reference_problems(method: t.Method, program: t.Program) -> Iterator[str]:
    ranges = {s.name: Interval(s.min, s.max) for s in method.symbols}
    for i, value in enumerate(method.values):
        where = f"value {i} ({value.name})"
        match value:
            case t.TensorValue():
                dims = (*value.sizes, *value.strides, value.storage.offset_bytes)
                yield from _dim_problems(where, dims, ranges)
                yield from _storage_problems(where, i, value, method, program)
            case t.SymIntValue():
                yield from _dim_problems(where, (value.expression,), ranges)
            case t.ListValue():
                for item in value.items:
                    if item >= len(method.values):
                        yield f"{where}: item {item}: there are {len(method.values)} values"
                    elif isinstance(method.values[item], t.ListValue):
                        yield f"{where}: item {item} is itself a list"


def _dim_problems(where: str, dims: tuple[t.Dim, ...], ranges: dict[str, Interval]) -> Iterator[str]:
    for dim in dims:
        try:
            bounds(dim, ranges)
        except ValueError as error:
            yield f"{where}: {error}"


def _storage_problems(
    where: str, index: int, value: t.TensorValue, method: t.Method, program: t.Program
) -> Iterator[str]:
    match value.storage:
        case t.Planned(buffer=buffer):
            if buffer >= len(method.buffers):
                yield f"{where}: buffer {buffer}: there are {len(method.buffers)}"
            elif (home := method.buffers[buffer].device) != value.device:
                yield f"{where}: on {value.device}, but its buffer {buffer} is on {home}"
        case t.Constant(name=name):
            if name not in program.constants:
                yield f"{where}: there is no constant {name!r}"
            if symbols_of(value.storage.offset_bytes):
                yield f"{where}: expected a fixed offset into constant {name!r}"
        case t.State(name=name):
            if name not in program.state:
                yield f"{where}: there is no state {name!r}"
            elif (home := program.state[name].device) != value.device:
                yield f"{where}: on {value.device}, but state {name!r} is on {home}"
        case t.Bound(value=base):
            owner = method.values[base] if base < len(method.values) else None
            if not isinstance(owner, t.TensorValue) or owner.storage != t.Bound(value=base):
                yield f"{where}: bound to value {base}, which is not a bound tensor at offset 0"
            elif base not in method.inputs and base not in method.outputs:
                yield f"{where}: bound to value {base}, which is neither an input nor an output"
            elif owner.device != value.device:
                yield f"{where}: on {value.device}, but what it is bound to is on {owner.device}"


def _fit_problems(where: str, value: t.TensorValue, layout: Layout, nbytes: int) -> Iterator[str]:
    if layout.end_bytes > nbytes:
        yield f"{where}: ends at byte {layout.end_bytes:,} of {nbytes:,} of its {_storage_name(value.storage)}"


def _storage_name(storage: t.Storage) -> str:
    match storage:
        case t.Planned(buffer=buffer):
            return f"buffer {buffer}"
        case t.Constant(name=name) | t.State(name=name):
            return f"{type(storage).__name__.lower()} {name!r}"
        case t.Bound(value=base):
            return f"bound value {base}"


def _slack_problems(method: t.Method, ends: list[int]) -> Iterator[str]:
    for i, (buffer, end) in enumerate(zip(method.buffers, ends, strict=True)):
        if buffer.nbytes > end + BUFFER_SLACK:
            yield f"buffer {i}: {buffer.nbytes:,} bytes, but its last tensor ends at {end:,}"
