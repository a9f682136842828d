"""Extract regions: neighbouring operators placed with one backend become one call, compiled by that backend."""

import hashlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from export_passes.backends.backend import Region, RegionCall
from export_passes.branches import is_control
from export_passes.graph_pass import NodeError
from export_passes.method_graph import MethodGraph, is_tensor, is_view, mutated_by, root_of
from export_passes.operator_traits import is_check, nodes_in
from export_passes.placement import Placement


def run_region(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Stand for the call of an opaque region, which `meta["region"]` describes. Stands in graphs, is never called."""
    raise NotImplementedError("run_region only stands in graphs")


def extract_regions(method: MethodGraph) -> None:
    """Replace each run of operators that are placed with one backend on one device by a call of a compiled region.

    Nodes that are calls of regions already are left alone. A view that is read outside of its region is made there
    again, so that regions return whole tensors and writes through views stay visible. Raises NodeError where a region
    returns numbers or writes an input that is not contiguous.
    """
    for node in reversed(method.operators):
        if is_check(node.target) and not node.users:
            method.graph.erase_node(node)
    runs = [run for run in _runs(method) if any(_is_operator(node) and not is_view(node) for node in run.nodes)]
    for number, run in enumerate(runs):
        _extract(method, run, f"{method.name}.region{number}")


@dataclass(slots=True)
class _Run:
    """Operators that become one region, in order."""

    placement: Placement
    nodes: list[Node] = field(default_factory=list)


def _runs(method: MethodGraph) -> Iterator[_Run]:
    current: _Run | None = None
    for node in method.operators:
        placement = node.meta.get("placement", Placement())
        if node.target is operator.getitem and current is not None and node.args[0] in current.nodes:
            current.nodes.append(node)
        elif is_control(node):
            # What runs on one way only is no part of what runs always.
            if current is not None:
                yield current
            current = None
        elif not _is_operator(node):
            continue
        elif placement.backend is not None and current is not None and placement == current.placement:
            current.nodes.append(node)
        else:
            if current is not None:
                yield current
            current = _Run(placement, [node]) if placement.backend is not None else None
    if current is not None:
        yield current


def _is_operator(node: Node) -> bool:
    """Return whether `node` deals with tensors; arithmetic of sizes does not end a run."""
    makes_tensors = isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
    return isinstance(node.target, torch._ops.OpOverload) and (makes_tensors or bool(mutated_by(node)))


def _extract(method: MethodGraph, run: _Run, name: str) -> None:
    _use_what_was_written(run)
    inside = set(run.nodes)
    last = run.nodes[-1]
    results = [node for node in run.nodes if is_tensor(node) and not is_view(node) and _read_outside(node, inside)]
    inputs = list(dict.fromkeys(n for node in run.nodes for n in _tensors_needed(node, inside)))
    mutated = _mutated_inputs(run, inputs)
    region = Region(
        name=name,
        device=run.placement.device,
        module=_module(run, inputs, results),
        inputs=tuple(node.meta["val"] for node in inputs),
        mutated=mutated,
        ranges=dict(method.ranges),
    )
    with method.graph.inserting_after(last):
        call = method.graph.create_node("call_function", run_region, tuple(inputs), {}, name=name.replace(".", "_"))
    call.meta = {
        "val": [node.meta["val"] for node in results],
        "placement": run.placement,
        "region": _compiled(region, run.placement),
        "mutated": mutated,
        "result_names": [node.name for node in results],
    }
    _replace(method.graph, run, call, results)


def _use_what_was_written(run: _Run) -> None:
    """Let users of an in-place operator's result use the tensor that it wrote."""
    for node in run.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and is_tensor(node):
            returned = node.target._schema.returns[0].alias_info
            if returned is not None and returned.is_write:
                node.replace_all_uses_with(mutated_by(node)[0])


def _tensors_needed(node: Node, inside: set[Node]) -> Iterator[Node]:
    """Yield tensors from outside that a node needs, itself or to work out its numbers."""
    for argument in nodes_in((node.args, node.kwargs)):
        if argument in inside:
            continue
        if is_tensor(argument):
            yield argument
        elif argument.op == "call_function":
            yield from _tensors_needed(argument, inside)
        else:
            raise NodeError(node, f"an opaque region cannot take the number {argument.name}")


def _mutated_inputs(run: _Run, inputs: list[Node]) -> tuple[int, ...]:
    roots = {root_of(written) for node in run.nodes for written in mutated_by(node)}
    mutated = tuple(i for i, node in enumerate(inputs) if root_of(node) in roots)
    for i in mutated:
        if not inputs[i].meta["val"].is_contiguous():
            raise NodeError(inputs[i], "an opaque region writes it, and it is not contiguous")
    return mutated


def _module(run: _Run, inputs: list[Node], results: list[Node]) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}

    def copied(node: Node) -> Node:
        if node not in copies:
            # A number worked out outside: it is worked out again from the tensors that the region gets.
            copies[node] = graph.node_copy(node, copied)
        return copies[node]

    for i, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{i}")
    for node in run.nodes:
        copied(node)
    nothing = () if results else (graph.call_function(torch.ops.aten.empty.memory_format, ([0],)),)
    graph.output(tuple(copies[node] for node in results) or nothing)
    return GraphModule(torch.nn.Module(), graph)


def _compiled(region: Region, placement: Placement) -> RegionCall:
    assert placement.backend is not None
    payload = placement.backend.compile(region)
    name = placement.backend.name
    key = f"{name}-{hashlib.sha256(payload).hexdigest()[:24]}"
    return RegionCall(backend=name, name=region.name, key=key, payload=payload)


def _replace(graph: Graph, run: _Run, call: Node, results: list[Node]) -> None:
    """Put items of the call, and the views that are read outside, in the place of the run's nodes."""
    inside = set(run.nodes)
    after = call
    replaced: dict[Node, Node] = {}

    def place(target: Any, args: Any, kwargs: Any, node: Node) -> Node:
        nonlocal after
        with graph.inserting_after(after):
            after = graph.create_node("call_function", target, args, kwargs, name=f"{node.name}_outside")
        after.meta = dict(node.meta) | {"placement": Placement(run.placement.device)}
        return after

    for i, node in enumerate(results):
        replaced[node] = place(operator.getitem, (call, i), {}, node)
    for node in run.nodes:
        if is_view(node) and _read_outside(node, inside):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: replaced.get(n, n))
            replaced[node] = place(node.target, args, kwargs, node)
    for node in _between(run, call):
        # Arithmetic of the sizes of what the region returns.
        if any(n in replaced for n in nodes_in((node.args, node.kwargs))):
            after.append(node)
            after = node
    for node, new in replaced.items():
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in inside)
    for node in reversed(run.nodes):
        graph.erase_node(node)


def _between(run: _Run, call: Node) -> list[Node]:
    """Return the nodes among the run's that are not of it, in order."""
    inside, found, node = set(run.nodes), [], run.nodes[0]
    while node is not call:
        if node not in inside:
            found.append(node)
        node = node.next
    return found


def _read_outside(node: Node, inside: set[Node]) -> bool:
    return any(user not in inside or (is_view(user) and _read_outside(user, inside)) for user in node.users)
