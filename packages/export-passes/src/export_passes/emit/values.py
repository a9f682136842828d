"""The value table of a method: each tensor, number and list of a graph becomes one value, at its first use."""

import math
from typing import Any

import torch
from device_core.schema import types as t
from device_core.schema.dtypes import NAMES
from torch.fx import Node

from export_passes.errors import UnsupportedError
from export_passes.memory_plan.planner import MemoryPlan
from export_passes.method_graph import MethodGraph, is_tensor, root_of, source_of, spec_of


class ValueTable:
    """Collects the values of one method; `index` gives the place of each."""

    def __init__(self, method: MethodGraph, plan: MemoryPlan) -> None:
        self.values: list[t.Value] = []
        self._method = method
        self._plan = plan
        self._tensors: dict[Node, int] = {}
        self._others: dict[t.Value, int] = {}

    @property
    def tensors(self) -> list[Node]:
        """Return the tensors that are values, in the order of their values."""
        return list(self._tensors)

    def index(self, value: object) -> int:
        """Return the index of `value`, which is added where it is new.

        Raises UnsupportedError for what a program cannot hold.
        """
        if isinstance(value, Node) and is_tensor(value):
            return self._tensor(value)
        if isinstance(value, Node):
            return self._other(self._input_number(value))
        if isinstance(value, list | tuple):
            return self._other(t.ListValue(name="list", items=tuple(self.index(item) for item in value)))
        return self._other(self._number(value))

    def _tensor(self, node: Node) -> int:
        if node in self._tensors:
            return self._tensors[node]
        root = root_of(node)
        base = self._tensor(root) if root is not node else len(self.values)
        index = self._tensors[node] = len(self.values)
        spec = spec_of(node)
        if spec.dtype not in NAMES:
            raise UnsupportedError(f"tensor {node.name!r}: dtype {spec.dtype} has no place in a program")
        value = t.TensorValue(
            name=node.name,
            dtype=NAMES[spec.dtype],
            sizes=spec.sizes,
            strides=spec.strides,
            storage=self._storage(root, base, spec.offset_bytes),
            device=str(spec.device),
        )
        self.values.append(value)
        return index

    def _storage(self, root: Node, base: int, offset: t.Dim) -> t.Storage:
        if root in self._plan.places:
            buffer, start = self._plan.places[root]
            return t.Planned(buffer=buffer, offset_bytes=_sum(offset, start))
        source = source_of(root)
        if source is None or source.kind == "input":
            return t.Bound(value=base, offset_bytes=offset)
        if source.kind == "state":
            return t.State(name=source.name, offset_bytes=offset)
        return t.Constant(name=source.name, offset_bytes=offset)

    def _other(self, value: t.Value) -> int:
        if value not in self._others:
            self._others[value] = len(self.values)
            self.values.append(value)
        return self._others[value]

    def _input_number(self, node: Node) -> t.Value:
        """Return the value of an input that is a number or None."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return t.SymIntValue(name=node.name, expression=self._method.symbols.dim(value))
        return _scalar(node.name, value)

    def _number(self, value: Any) -> t.Value:
        if isinstance(value, torch.SymInt):
            dim = self._method.symbols.dim(value)
            if isinstance(dim, int):
                return _scalar(str(dim), dim)
            return t.SymIntValue(name=str(dim), expression=dim)
        if isinstance(value, torch.dtype):
            return t.DtypeValue(name=NAMES[value], dtype=NAMES[value])
        if isinstance(value, torch.device):
            return _scalar(str(value), str(value))
        return _scalar(str(value), value)


def _scalar(name: str, value: Any) -> t.Value:
    if isinstance(value, float) and not math.isfinite(value):
        return t.NonFiniteValue(name=name, value="nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    if value is None or isinstance(value, bool | int | float | str):
        return t.ScalarValue(name=name, value=value)
    raise UnsupportedError(f"argument {value!r}: a program cannot hold a {type(value).__name__}")


def _sum(offset: t.Dim, start: int) -> t.Dim:
    if isinstance(offset, int):
        return offset + start
    return f"{offset} + {start}" if start else offset
