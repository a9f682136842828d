"""What must hold of one method: its tables, its inputs and outputs, and that its symbols follow from its inputs."""

import math
import re
from collections import Counter
from collections.abc import Iterator

from device_core.device import Device
from device_core.errors import DeviceError
from device_core.schema import types as t
from device_core.schema.dtypes import DTYPES
from device_core.schema.symbols import symbol_problems
from device_core.schema.validate_instructions import instruction_problems
from device_core.schema.validate_values import value_problems

MAX_RANK = 64

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r"\w+::\w+(\.\w+)?", re.ASCII)


def method_problems(method: t.Method, program: t.Program) -> list[str]:
    """Return what is wrong with `method`, given a program whose constants, state and files are right."""
    problems = [*_table_problems(method), *_tensor_problems(method)]
    if not problems:
        # What refers to the tables is judged only where they hold.
        problems = [*value_problems(method, program), *_signature_problems(method), *instruction_problems(method)]
    return problems or list(symbol_problems(method))


def device_problems(where: str, device: str) -> Iterator[str]:
    """Yield a problem where `device` is not written as a device is."""
    try:
        parsed = Device.parse(device)
    except DeviceError as error:
        yield f"{where}: {error}"
        return
    if str(parsed) != device:
        yield f"{where}: device {device!r}: expected it written as {str(parsed)!r}"


def _table_problems(method: t.Method) -> Iterator[str]:
    for name, count in Counter(symbol.name for symbol in method.symbols).items():
        if count > 1 or not _SYMBOL.fullmatch(name):
            yield f"symbol {name!r}: expected one of that name, made of letters, digits and _"
    for symbol in method.symbols:
        if symbol.min > symbol.max:
            yield f"symbol {symbol.name}: its range {symbol.min} to {symbol.max} is empty"
    for operator, count in Counter(method.operators).items():
        if count > 1 or not _OPERATOR.fullmatch(operator):
            yield f"operator {operator!r}: expected one of that name, written namespace::name.overload"
    for i, buffer in enumerate(method.buffers):
        yield from device_problems(f"buffer {i}", buffer.device)
    for i, delegate in enumerate(method.delegates):
        yield from device_problems(f"delegate {i}", delegate.device)
    for i in (*method.inputs, *method.outputs):
        if i >= len(method.values):
            yield f"input or output {i}: there are {len(method.values)} values"


def _tensor_problems(method: t.Method) -> Iterator[str]:
    for i, value in enumerate(method.values):
        where = f"value {i} ({value.name})"
        if isinstance(value, t.TensorValue | t.DtypeValue) and value.dtype not in DTYPES:
            yield f"{where}: unknown dtype {value.dtype!r}"
        if isinstance(value, t.TensorValue):
            yield from device_problems(where, value.device)
            if len(value.sizes) != len(value.strides) or len(value.sizes) > MAX_RANK:
                yield f"{where}: {len(value.sizes)} sizes and {len(value.strides)} strides"
        elif isinstance(value, t.ScalarValue) and isinstance(value.value, float) and not math.isfinite(value.value):
            yield f"{where}: {value.value}: expected a NonFiniteValue for what is not a finite number"


def _signature_problems(method: t.Method) -> Iterator[str]:
    for i, count in Counter(method.inputs).items():
        value = method.values[i]
        where = f"input {i} ({value.name})"
        if count > 1:
            yield f"{where}: is there {count} times"
        match value:
            case t.TensorValue(storage=t.Bound(value=base)) if base == i:
                pass
            case t.TensorValue(storage=t.Planned(buffer=buffer)):
                yield from _io_problems(where, method, buffer)
            case t.SymIntValue(expression=str(symbol)) if _SYMBOL.fullmatch(symbol):
                pass
            case t.ScalarValue() | t.NonFiniteValue():
                pass
            case _:
                yield f"{where}: expected a bound or planned tensor, a symbol or a scalar"
    for i in method.outputs:
        value = method.values[i]
        where = f"output {i} ({value.name})"
        match value:
            case t.TensorValue(storage=t.Planned(buffer=buffer)):
                yield from _io_problems(where, method, buffer)
            case t.DtypeValue() | t.ListValue():
                yield f"{where}: expected a tensor or a number"


def _io_problems(where: str, method: t.Method, buffer: int) -> Iterator[str]:
    if buffer < len(method.buffers) and method.buffers[buffer].kind != "io":
        yield f"{where}: expected an io buffer, got buffer {buffer}, which is scratch that other methods overwrite"
