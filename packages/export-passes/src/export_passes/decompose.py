"""Decompose: rebuild each graph out of operators that have an out form, are views, or write their arguments."""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate, map_arg

from export_passes.branches import is_control
from export_passes.errors import UnsupportedError
from export_passes.graph_pass import MethodPass, NodeError, failures_at
from export_passes.lowerings import can_lower
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
from export_passes.recorder import Recorder

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
    recorder = Recorder(fake_mode, symbolic=bool(method.ranges))
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


def _rebuild(node: Node, values: dict[Node, Any], recorder: Recorder) -> Any:
    if node.op == "placeholder":
        return recorder.placeholder(node)
    if node.op == "get_attr":
        # The body of a loop or the like; the operator that runs it is refused.
        return None
    if node.op != "call_function":
        raise NodeError(node, f"{node.op} {node.target!r} is not supported")
    args = map_aggregate(map_arg(node.args, values.__getitem__), _host_device)
    kwargs = map_aggregate(map_arg(node.kwargs, values.__getitem__), _host_device)
    target: Any = node.target
    if "region" in node.meta:
        return recorder.region(node, args)
    if is_control(node):
        return recorder.control(node, args)
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise NodeError(node, f"{target.name()}: loops and the like are not supported; of control flow, `cond` is")
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
        if node.op != "call_function" or mutated_by(node) or is_control(node):
            continue
        if node.target is operator.getitem and not is_view(node):
            # The results of one operator come and go together: all of them need memory.
            continue
        items = list(node.users) if isinstance(node.meta.get("val"), list | tuple) else []
        if not node.users or (items and not any(item.users for item in items)):
            for unused in (*items, node):
                graph.erase_node(unused)
