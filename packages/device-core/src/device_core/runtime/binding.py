"""Arguments of a call: checked against their declaration, and the symbols that follow from their sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from device_core.device import Device
from device_core.errors import InputError
from device_core.schema import types as t
from device_core.schema.dims import solve
from device_core.schema.dtypes import DTYPES
from device_core.schema.layout import layout_of
from device_core.schema.symbols import symbol_sources

Argument = torch.Tensor | int | float | bool | str | None


class Signature:
    """The inputs of a method, as far as they are the same for all symbols."""

    def __init__(self, method: t.Method) -> None:
        self._name = method.name
        self._values = [method.values[i] for i in method.inputs]
        self._symbols = method.symbols
        self._sources = symbol_sources(method)

    def symbols(self, inputs: Sequence[Argument]) -> dict[str, int]:
        """Return the symbols' values for these inputs.

        Raises InputError where their number, kinds, ranks or dtypes are wrong, or a symbol leaves its range.
        """
        self._check_kinds(inputs)
        found: dict[str, int] = {}
        for source in self._sources:
            given: Any = inputs[source.position]
            size = given if source.axis is None else given.shape[source.axis]
            if source.dim != source.symbol:
                solution = solve(source.dim, size, found)
                if solution is None:
                    where = f"{self._where(source.position)}: size {source.axis}"
                    raise InputError(f"{where}: expected {source.dim}, got {size}")
                size = solution[1]
            found[source.symbol] = size
        for symbol in self._symbols:
            if not symbol.min <= found[symbol.name] <= symbol.max:
                raise InputError(
                    f"{self._name}: {symbol.name}: expected {symbol.min} to {symbol.max}, got {found[symbol.name]}"
                )
        return found

    def _check_kinds(self, inputs: Sequence[Argument]) -> None:
        if len(inputs) != len(self._values):
            raise InputError(f"{self._name}: expected {len(self._values)} inputs, got {len(inputs)}")
        for position, (value, given) in enumerate(zip(self._values, inputs, strict=True)):
            if isinstance(value, t.TensorValue):
                if not isinstance(given, torch.Tensor):
                    raise InputError(f"{self._where(position)}: expected a tensor, got {type(given).__name__}")
                if given.dim() != len(value.sizes):
                    wanted = "(" + ", ".join(map(str, value.sizes)) + ")"
                    raise InputError(f"{self._where(position)}: expected sizes {wanted}, got {tuple(given.shape)}")
            elif isinstance(value, t.SymIntValue) and (not isinstance(given, int) or isinstance(given, bool)):
                raise InputError(f"{self._where(position)}: expected an int, got {given!r}")

    def _where(self, position: int) -> str:
        return f"{self._name}: input {position} ({self._values[position].name})"


class TensorCheck:
    """One tensor argument, for given symbols."""

    __slots__ = ("_device", "_dtype", "_sizes", "_strides", "_where")

    def __init__(self, where: str, value: t.TensorValue, symbols: Mapping[str, int]) -> None:
        layout = layout_of(value, symbols)
        self._where = where
        self._dtype = DTYPES[value.dtype]
        self._device = Device.parse(value.device).torch
        self._sizes = torch.Size(layout.sizes)
        self._strides = layout.strides

    def __call__(self, given: object) -> torch.Tensor:
        """Return `given`. Raises InputError where it is not a tensor of this dtype, device, sizes and strides."""
        if not isinstance(given, torch.Tensor):
            raise InputError(f"{self._where}: expected a tensor, got {type(given).__name__}")
        if given.shape != self._sizes:
            raise InputError(f"{self._where}: expected sizes {tuple(self._sizes)}, got {tuple(given.shape)}")
        if given.dtype != self._dtype:
            raise InputError(f"{self._where}: expected {self._dtype}, got {given.dtype}")
        if _normal(given.device) != self._device:
            raise InputError(f"{self._where}: expected a tensor on {self._device}, got one on {given.device}")
        if given.stride() != self._strides and not self._same_elements(given):
            raise InputError(f"{self._where}: expected strides {self._strides}, got {given.stride()}")
        return given

    def _same_elements(self, given: torch.Tensor) -> bool:
        """Return whether strides differ only where they do not matter."""
        strides = zip(self._sizes, given.stride(), self._strides, strict=True)
        return given.numel() == 0 or all(size == 1 or a == b for size, a, b in strides)


class ScalarCheck:
    """One argument that was fixed at export."""

    __slots__ = ("_expected", "_where")

    def __init__(self, where: str, value: t.ScalarValue | t.NonFiniteValue) -> None:
        self._where = where
        self._expected = float(value.value) if isinstance(value, t.NonFiniteValue) else value.value

    def __call__(self, given: object) -> None:
        """Raise InputError unless `given` is the exported value."""
        equal = given == self._expected or (given != given and self._expected != self._expected)  # not a number
        if type(given) is not type(self._expected) or not equal:
            raise InputError(f"{self._where}: expected {self._expected!r}, as exported, got {given!r}")


def addresses(tensor: torch.Tensor) -> range:
    """Return the addresses from the first to the last byte of a tensor, gaps between included; none without bytes."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return range(start, start)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(start, start + (last + 1) * tensor.itemsize)


def intersect(a: range, b: range) -> bool:
    """Return whether two ranges of addresses have any in common."""
    return max(a.start, b.start) < min(a.stop, b.stop)


def _normal(device: torch.device) -> torch.device:
    return device if device.index is not None or device.type == "cpu" else torch.device(device.type, 0)
