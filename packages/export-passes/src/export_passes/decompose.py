"""Decompose: rebuild each graph out of operators that have an out form, are views, or write their arguments."""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from export_passes.errors import UnsupportedError
from export_passes.graph_pass import MethodPass, NodeError, failures_at
from export_passes.inline import Autocast
from export_passes.lowerings import can_lower, decomposition_of
from export_passes.method_graph import (
    MethodGraph,
    is_computation,
    is_tensor,
    is_view,
    mutated_by,
    root_of,
    source_of,
)
from export_passes.operator_traits import is_check, nodes_in, traits_of

aten = torch.ops.aten

# The same tensor under another name.
_SAME = {aten.alias.default, aten.detach.default, aten.detach_.default, aten.lift_fresh.default, aten.lift.default}


class Decompose(MethodPass):
    """The pass around `decompose`."""

    name = "decompose"

    def run_on(self, method: MethodGraph) -> None:
        """Replace the graph."""
        method.graph = decompose(method)

    def ensures(self, method: MethodGraph) -> None:
        """Every node left can be lowered; all that cannot are named at once."""
        missing = {str(n.target) for n in method.operators if is_computation(n) and not can_lower(n)}
        if missing:
            raise UnsupportedError("no out form, decomposition or lowering is known for: " + ", ".join(sorted(missing)))


def decompose(method: MethodGraph) -> Graph:
    """Return a new graph for `method`: each operator is run on fake tensors, and what it dispatches to is recorded.

    In the result symbolic integers stand in the arguments themselves, results of in-place operators are the tensors
    they wrote, each result of an operator with several has its own item node, burnt-in devices are gone, and nothing
    is left that no output, state or input depends on.
    """
    fake_mode = _fake_mode(method)
    recorder = _Recorder(fake_mode, symbolic=bool(method.ranges))
    values: dict[Node, Any] = {}
    for node in method.graph.nodes:
        with failures_at(node), _no_assumptions(fake_mode):
            if node.op == "output":
                recorder.graph.output(recorder.as_nodes(map_arg(node.args[0], values.__getitem__)))
            else:
                values[node] = _rebuild(node, values, recorder)
    _fold_copies_of_constants(recorder.graph)
    _drop_unused(recorder.graph)
    return recorder.graph


def _rebuild(node: Node, values: dict[Node, Any], recorder: "_Recorder") -> Any:
    if node.op == "placeholder":
        return recorder.placeholder(node)
    if node.op == "get_attr":
        # A branch or loop body; the operator that runs it is refused.
        return None
    if node.op != "call_function":
        raise NodeError(node, f"{node.op} {node.target!r} is not supported")
    args = map_aggregate(map_arg(node.args, values.__getitem__), _host_device)
    kwargs = map_aggregate(map_arg(node.kwargs, values.__getitem__), _host_device)
    target: Any = node.target
    if "region" in node.meta:
        return recorder.region(node, args)
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise NodeError(node, f"{target.name()}: control flow that depends on data is not supported")
    if not isinstance(target, torch._ops.OpOverload):
        return target(*args, **kwargs)
    if is_check(target):
        return None
    if target in _SAME:
        return args[0]
    if torch.Tag.inplace_view in target.tags:
        target = _functional_view(node)
    result = recorder.run(node, target, args, kwargs)
    if _moved(node) and result is args[0]:
        # A move to another device makes a new tensor; here all devices are one.
        return recorder.run(node, aten.clone.default, (result,), {})
    return result


class _Recorder(TorchDispatchMode):
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
def _no_assumptions(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Raise UnsupportedError where a symbolic size was taken to be what it was at export."""
    shapes = fake_mode.shape_env
    if shapes is None:
        yield
        return
    frozen, known = shapes.frozen, len(shapes.guards)
    shapes.frozen = False
    try:
        yield
    finally:
        shapes.frozen = frozen
        assumed = [str(guard.expr) for guard in shapes.guards[known:]]
        del shapes.guards[known:]
    if assumed:
        raise UnsupportedError(f"can only be taken apart for sizes of which {', '.join(assumed)} holds")


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Choose no operators of mkldnn: its recurrent layers have no out form that works."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _fake_mode(method: MethodGraph) -> FakeTensorMode:
    values = [node.meta["val"] for node in method.graph.nodes if is_tensor(node)]
    return detect_fake_mode(values) or FakeTensorMode()


def _host_device(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _moved(node: Node) -> bool:
    """Return whether the export saw `node` move its argument to another device."""
    sources = [n for n in nodes_in(node.args[:1]) if is_tensor(n)]
    return is_tensor(node) and bool(sources) and sources[0].meta["val"].device != node.meta["val"].device


def _functional_view(node: Node) -> torch._ops.OpOverload:
    """Return the view that an operator such as `t_` applies in place; in the graph later uses refer to its result."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    packet = getattr(aten, target._schema.name.split("::")[1].rstrip("_"), None)
    overload = getattr(packet, target._overloadname or "default", None)
    if overload is None or traits_of(overload).view_of is None:
        raise NodeError(node, f"{target}: changes what a tensor is, not what it holds, and no view does the same")
    return overload


def _fold_copies_of_constants(graph: Graph) -> None:
    """Use a constant itself where the graph copies it and never writes the copy."""
    written = {root_of(n) for node in graph.nodes for n in mutated_by(node)}
    for node in list(graph.nodes):
        if node.target is not aten.lift_fresh_copy.default:
            continue
        constant = node.args[0]
        source = source_of(root_of(constant))
        if (
            node not in written
            and root_of(constant) not in written
            and source is not None
            and source.kind == "constant"
        ):
            node.replace_all_uses_with(constant)


def _drop_unused(graph: Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or mutated_by(node):
            continue
        if node.target is operator.getitem and not is_view(node):
            # The results of one operator come and go together: all of them need memory.
            continue
        items = list(node.users) if isinstance(node.meta.get("val"), list | tuple) else []
        if not node.users or (items and not any(item.users for item in items)):
            for unused in (*items, node):
                graph.erase_node(unused)
