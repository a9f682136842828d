"""Branches: a `torch.cond` becomes both of its branches one after the other, and jumps that pass over one of them.

All jumps go forward, so every way through a method is a part of its list of nodes: what holds of the order of the list,
such as which tensors are alive together, holds of every way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from export_passes.errors import UnsupportedError
from export_passes.placement import Placement

aten = torch.ops.aten

Inliner = Callable[[GraphModule, Sequence[Any]], Sequence[Any]]
"""Adds the nodes of a module, given its inputs, to the graph; returns its results."""


def begin(condition: torch.Tensor) -> None:
    """Begin what runs where the condition holds. Stands in graphs and is never called."""
    raise NotImplementedError("begin only stands in graphs")


def otherwise() -> None:
    """Begin what runs where it does not. Stands in graphs and is never called."""
    raise NotImplementedError("otherwise only stands in graphs")


def end() -> None:
    """End the branches that were begun last. Stands in graphs and is never called."""
    raise NotImplementedError("end only stands in graphs")


def move(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy the elements of `source` to `target`. Stands in graphs and is never called."""
    raise NotImplementedError("move only stands in graphs")


def is_control(node: Node) -> bool:
    """Return whether `node` parts or joins ways, or moves the result of a branch."""
    return node.target in (begin, otherwise, end, move)


def is_join(node: Node) -> bool:
    """Return whether what stands right before `node` may not have run when it is reached."""
    return node.target in (otherwise, end)


def flatten_branches(graph: Graph, call: Node, branches: Sequence[GraphModule], inline: Inliner) -> None:
    """Put both branches of a `cond` in its place; each moves its results into memory that both share.

    Raises UnsupportedError where a branch returns anything but tensors.
    """
    condition, operands, values = call.args[0], call.args[3], call.meta["val"]
    assert isinstance(operands, list | tuple)
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise UnsupportedError(f"node {call.name!r}: expected branches that return tensors, got {values!r}")
    holds, fails = branches
    with graph.inserting_before(call):
        results = [_memory(graph, f"{call.name}_{i}", value) for i, value in enumerate(values)]
        _control(graph, begin, condition)
        _fill(graph, results, inline(holds, operands))
        _control(graph, otherwise)
        _fill(graph, results, inline(fails, operands))
        _control(graph, end)
    for item in list(call.users):
        item.replace_all_uses_with(results[item.args[1]])  # type: ignore[index]  # items of a tuple
        graph.erase_node(item)
    graph.erase_node(call)


def _memory(graph: Graph, name: str, value: torch.Tensor) -> Node:
    sizes, strides = tuple(value.shape), tuple(value.stride())
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    node = graph.create_node("call_function", aten.empty_strided.default, (sizes, strides), options, name=name)
    node.meta["val"] = value
    return node


def _fill(graph: Graph, targets: Sequence[Node], sources: Sequence[Any]) -> None:
    for target, source in zip(targets, sources, strict=True):
        _control(graph, move, target, source).meta["mutated"] = (0,)


def _control(graph: Graph, target: Any, *args: Any) -> Node:
    node = graph.call_function(target, args)
    # No partitioner is asked: the host decides which way to go, and a move is made where the memory is.
    node.meta["placement"] = Placement()
    return node
