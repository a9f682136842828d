"""The values of a method as Python objects: tensors over the memory where their bytes lie, numbers, lists."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from device_core.buffer import DeviceMemoryBuffer, view_bytes
from device_core.schema import types as t
from device_core.schema.dims import evaluate
from device_core.schema.dtypes import DTYPES
from device_core.schema.layout import Layout, layout_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Storages:
    """Where the bytes of a method's tensors lie.

    planned: its buffers, by index. constants: contiguous tensors by (name, device). state: contiguous tensors by name.
    """

    planned: Sequence[DeviceMemoryBuffer]
    constants: Mapping[tuple[str, str], torch.Tensor]
    state: Mapping[str, torch.Tensor]


@dataclass(slots=True, kw_only=True)
class BoundView:
    """A value over a tensor that the caller passes, and the places in arguments that it is put into.

    base: the index of the input or output that is passed. layout: None where the value is that tensor itself.
    """

    base: int
    dtype: torch.dtype
    layout: Layout | None
    places: list[tuple[Any, Any]] = field(default_factory=list)

    def put(self, tensor: torch.Tensor) -> None:
        """Fill the places from the passed tensor."""
        view = self.of(tensor)
        for container, key in self.places:
            container[key] = view

    def clear(self) -> None:
        """Let go of the passed tensor."""
        for container, key in self.places:
            container[key] = None

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value over the passed tensor."""
        layout = self.layout
        if layout is None:
            return tensor
        if tensor.dtype != self.dtype:
            flat = tensor.view(-1)
            return view_bytes(flat, self.dtype, layout.sizes, layout.strides, offset_bytes=layout.offset_bytes)
        offset = tensor.storage_offset() + layout.offset_bytes // tensor.itemsize
        return tensor.as_strided(layout.sizes, layout.strides, offset)


class LinkedValues:
    """The values of `method` for given symbols, each made once.

    Raises ValueError, naming the value, where a tensor does not lie within its storage.
    """

    def __init__(self, method: t.Method, symbols: Mapping[str, int], storages: Storages) -> None:
        self._method = method
        self._symbols = symbols
        self._storages = storages
        self._objects: dict[int, Any] = {}
        self.bound: dict[int, BoundView] = {}

    def place(self, container: Any, key: Any, index: int) -> None:
        """Put a value into `container[key]`, now or, where the caller passes it, at each call."""
        value = self._method.values[index]
        if isinstance(value, t.ListValue):
            items: list[Any] = [None] * len(value.items)
            for i, item in enumerate(value.items):
                self.place(items, i, item)
            container[key] = items
        elif isinstance(value, t.TensorValue) and isinstance(value.storage, t.Bound):
            self.bound_view(index).places.append((container, key))
            container[key] = None
        else:
            container[key] = self.get(index)

    def get(self, index: int) -> Any:
        """Return a value that is the same for all calls."""
        if index not in self._objects:
            self._objects[index] = self._make(index)
        return self._objects[index]

    def tensors(self) -> list[tuple[int, torch.Tensor]]:
        """Return the tensors over memory of the method and its session that were asked for, with their values."""
        kinds = (t.Planned, t.State)
        return [
            (i, self._objects[i])
            for i, value in enumerate(self._method.values)
            if i in self._objects and isinstance(value, t.TensorValue) and isinstance(value.storage, kinds)
        ]

    def bound_view(self, index: int) -> BoundView:
        """Return the view that a bound value is."""
        if index not in self.bound:
            value = self._method.values[index]
            assert isinstance(value, t.TensorValue)
            assert isinstance(value.storage, t.Bound)
            base = self._method.values[value.storage.value]
            assert isinstance(base, t.TensorValue)
            layout, whole = self._layout(index, value), layout_of(base, self._symbols)
            if layout.end_bytes > whole.span_bytes:
                raise ValueError(
                    f"value {index} ({value.name}): ends at {layout.end_bytes} of {whole.span_bytes} bytes"
                )
            same = layout == whole and value.dtype == base.dtype
            self.bound[index] = BoundView(
                base=value.storage.value, dtype=DTYPES[value.dtype], layout=None if same else layout
            )
        return self.bound[index]

    def _make(self, index: int) -> Any:
        match self._method.values[index]:
            case t.TensorValue() as value:
                return self._tensor(index, value)
            case t.SymIntValue(expression=expression):
                return evaluate(expression, self._symbols)
            case t.ScalarValue(value=scalar):
                return scalar
            case t.NonFiniteValue(value=text):
                return float(text)
            case t.DtypeValue(dtype=dtype):
                return DTYPES[dtype]
            case t.ListValue(items=items):
                return [self.get(item) for item in items]

    def _tensor(self, index: int, value: t.TensorValue) -> torch.Tensor:
        layout = self._layout(index, value)
        match value.storage:
            case t.Planned(buffer=buffer):
                memory = self._storages.planned[buffer].memory
            case t.Constant(name=name):
                memory = self._storages.constants[name, value.device]
            case t.State(name=name):
                memory = self._storages.state[name]
            case t.Bound():
                raise AssertionError(f"value {index} is passed by the caller")
        if memory.shape == layout.sizes and memory.stride() == layout.strides and memory.dtype == DTYPES[value.dtype]:
            return memory
        try:
            return view_bytes(
                memory, DTYPES[value.dtype], layout.sizes, layout.strides, offset_bytes=layout.offset_bytes
            )
        except ValueError as error:
            raise ValueError(f"value {index} ({value.name}): {error}") from error

    def _layout(self, index: int, value: t.TensorValue) -> Layout:
        try:
            return layout_of(value, self._symbols)
        except ValueError as error:
            raise ValueError(f"value {index} ({value.name}): {error}") from error
