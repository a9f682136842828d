"""The recorder: a mode under which every operator that runs on fake tensors is appended to a graph."""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from export_passes.errors import UnsupportedError
from export_passes.inline import Autocast
from export_passes.lowerings import decomposition_of
from export_passes.operator_traits import traits_of

aten = torch.ops.aten


class Recorder(TorchDispatchMode):
    """Appends to a graph every operator that runs under it, by the tensors it is given."""

    def __init__(self, fake_mode: FakeTensorMode, *, symbolic: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self._fake_mode = fake_mode
        self._symbolic = symbolic
        self._nodes: dict[int, Node] = {}
        self._origin: Node | None = None

    def placeholder(self, node: Node) -> Any:
        """Copy a placeholder; its tensor is on the host, wherever the export was made."""
        value = self._on_host(node.meta.get("val"))
        copy = self.graph.placeholder(node.name)
        copy.meta = dict(node.meta) | {"val": value}
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = copy
        return value

    def region(self, node: Node, args: Any) -> list[torch.Tensor]:
        """Copy the call of an opaque region, with an item for each result."""
        call = self.graph.create_node("call_function", node.target, self.as_nodes(args), {}, name=node.name)
        call.meta = dict(node.meta) | {"val": [self._on_host(value) for value in node.meta["val"]]}
        self._origin = node
        self._items(call, node.meta["result_names"])
        results: list[torch.Tensor] = call.meta["val"]
        return results

    def control(self, node: Node, args: Any) -> None:
        """Copy a node of control flow."""
        copy = self.graph.create_node("call_function", node.target, self.as_nodes(tuple(args)), {}, name=node.name)
        copy.meta = dict(node.meta)

    def run(self, origin: Node, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run one operator; what it records is named after `origin` and placed where `origin` is."""
        self._origin = origin
        before = self._last()
        with ExitStack() as stack:
            stack.enter_context(_without_mkldnn())
            if self._symbolic:
                # Composite operators in C++ ask for sizes as numbers; their forms in Python leave them symbols.
                stack.enter_context(enable_python_dispatcher())
            if isinstance(mode := origin.meta.get("autocast"), Autocast):
                stack.enter_context(mode.active())
            for context in (torch.no_grad(), self._fake_mode, self):
                stack.enter_context(context)
            result = target(*args, **kwargs)
        last = self._nodes.get(id(result)) if isinstance(result, torch.Tensor) else None
        if (
            last is not None
            and last is not before
            and last.op == "call_function"
            and last.meta["origin"] == origin.name
        ):
            last._rename(origin.name)
        return result

    def as_nodes(self, value: Any) -> Any:
        """Replace the tensors within `value` by the nodes that stand for them."""
        return map_aggregate(value, lambda v: self._nodes[id(v)] if isinstance(v, torch.Tensor) else v)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            raise UnsupportedError("reads a number out of a tensor; what a program does must not depend on data")
        if traits_of(func).is_query:
            return func(*args, **kwargs)
        decomposition = decomposition_of(func)
        if decomposition is not None:
            with self:
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        self._record(func, args, kwargs, result)
        return result

    def _record(self, func: torch._ops.OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        tensors = [r for r in (result if isinstance(result, list | tuple) else [result]) if isinstance(r, torch.Tensor)]
        node = self._append(func, self.as_nodes(args), self.as_nodes(kwargs))
        if traits_of(func).mutated and all(id(t) in self._nodes for t in tensors):
            # The results are the arguments that were written.
            return
        node.meta["val"] = result
        if isinstance(result, torch.Tensor):
            self._nodes[id(result)] = node
            return
        names = [returned.name for returned in func._schema.returns]
        self._items(
            node, [f"{node.meta['origin']}_{names[i] if len(names) > 1 else i}" for i in range(len(result or ()))]
        )

    def _items(self, node: Node, names: Sequence[str]) -> None:
        for i, item in enumerate(node.meta["val"] or ()):
            if isinstance(item, torch.Tensor):
                child = self._append(operator.getitem, (node, i), {}, name=names[i])
                child.meta["val"] = item
                self._nodes[id(item)] = child

    def _on_host(self, value: Any) -> Any:
        """Return a fake tensor like `value` on the host; other values as they are."""
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            return value
        with self._fake_mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)

    def _append(self, target: Any, args: Any, kwargs: Any, *, name: str = "") -> Node:
        origin = self._origin
        assert origin is not None
        if not name and target is origin.target:
            name = origin.name
        name = name or f"{origin.name}_{target._schema.name.split('::')[1].strip('_')}"
        node = self.graph.create_node("call_function", target, tuple(args), dict(kwargs), name=name)
        node.meta["origin"] = origin.name
        if "placement" in origin.meta:
            node.meta["placement"] = origin.meta["placement"]
        return node

    def _last(self) -> Node | None:
        return next(iter(reversed(self.graph.nodes)), None)


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Choose no operators of mkldnn: its recurrent layers have no out form that works."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
