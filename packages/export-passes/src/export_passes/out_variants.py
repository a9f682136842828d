"""Out variants: memory is made apart from the operators that write it."""

import dataclasses
from typing import Any

import torch
from torch.fx import Node

from export_passes.branches import is_control
from export_passes.graph_pass import MethodPass, NodeError, failures_at
from export_passes.lowerings import COPIES, EMPTY, FILLS, MEMORY_ARGUMENTS, is_functional, out_form, out_names
from export_passes.method_graph import (
    MethodGraph,
    is_allocation,
    is_computation,
    is_tensor,
    new_memory,
)
from export_passes.propagate_device import device_of
from export_passes.specs import require_specs

aten = torch.ops.aten


class OutVariants(MethodPass):
    """The pass around `out_variants`."""

    name = "out_variants"

    def requires(self, method: MethodGraph) -> None:
        """Tensors have specs."""
        require_specs(method)

    def run_on(self, method: MethodGraph) -> None:
        """Rewrite every operator that makes tensors."""
        out_variants(method)

    def ensures(self, method: MethodGraph) -> None:
        """Tensors are placeholders, new memory, or views; calls have no result that is used."""
        for node in method.operators:
            if is_computation(node) and not is_allocation(node) and node.users:
                raise NodeError(node, f"{node.target} still makes a tensor")


def out_variants(method: MethodGraph) -> None:
    """Replace each operator that makes tensors by `new_memory` nodes, one a result, and a call that writes them.

    Operators that write their arguments stay as they are: nothing is made functional, and no state is copied.
    """
    for node in method.operators:
        if is_computation(node) and not is_allocation(node) and not is_control(node):
            with failures_at(node):
                _rewrite(node, method)


def _rewrite(node: Node, method: MethodGraph) -> None:
    target: Any = node.target
    if "region" in node.meta:
        _rewrite_region(node, method)
    elif target in EMPTY:
        _new(node, node, method)
        _erase(node, method)
    elif target in COPIES:
        out = _new(node, node, method)
        _call(node, aten.copy_.default, (out, node.args[0]), {}, method)
    elif target in FILLS:
        out = _new(node, node, method)
        _call(node, aten.fill_.Scalar, (out, _fill_value(node)), {}, method)
    elif is_functional(target):
        _rewrite_functional(node, target, method)


def _rewrite_functional(node: Node, target: torch._ops.OpOverload, method: MethodGraph) -> None:
    out = out_form(target)
    assert out is not None
    names = out_names(target, out)
    outs = tuple(_new(result, node, method) for result in _results(node, len(names), method))
    accepted = {a.name: a for a in out._schema.arguments}
    kwargs = {name: value for name, value in node.kwargs.items() if name in accepted or name not in MEMORY_ARGUMENTS}
    for name in kwargs:
        if str(accepted[name].type) in ("Device", "Optional[Device]") and kwargs[name] is not None:
            kwargs[name] = str(device_of(node))
    _call(node, out, node.args, kwargs | dict(zip(names, outs, strict=True)), method)


def _results(node: Node, count: int, method: MethodGraph) -> list[Node]:
    """Return the results of an operator, one node each, also where nobody uses one."""
    if is_tensor(node):
        return [node]
    items = {user.args[1]: user for user in node.users}
    missing = [i for i in range(count) if i not in items]
    if missing:
        raise NodeError(node, f"result {missing[0]} has no node")
    return [items[i] for i in range(count)]


def _rewrite_region(node: Node, method: MethodGraph) -> None:
    region = node.meta["region"]
    if region.results is not None:
        return
    outs = tuple(_new(result, node, method) for result in _results(node, len(node.meta["val"]), method))
    written = (*node.meta["mutated"], *range(len(node.args), len(node.args) + len(outs)))
    call = _call(node, node.target, (*node.args, *outs), {}, method)
    call.meta |= {"region": dataclasses.replace(region, results=len(outs)), "mutated": written}


def _new(result: Node, before: Node, method: MethodGraph) -> Node:
    """Make memory for `result` and let its users use that."""
    with method.graph.inserting_before(before):
        memory = method.graph.create_node("call_function", new_memory, (), {}, name=result.name)
    memory.name, result.name = result.name, memory.name
    memory.meta = {key: result.meta[key] for key in ("val", "spec")} | _place_of(before)
    result.replace_all_uses_with(memory)
    return memory


def _call(node: Node, target: Any, args: Any, kwargs: Any, method: MethodGraph) -> Node:
    with method.graph.inserting_before(node):
        call = method.graph.create_node("call_function", target, tuple(args), dict(kwargs), name=f"{node.name}_call")
    call.meta = _place_of(node)
    _erase(node, method)
    return call


def _place_of(node: Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in ("device", "placement", "origin") if key in node.meta}


def _erase(node: Node, method: MethodGraph) -> None:
    for user in list(node.users):
        method.graph.erase_node(user)
    method.graph.erase_node(node)


def _fill_value(node: Node) -> Any:
    target: Any = node.target
    value = FILLS[target]
    if not isinstance(value, str):
        return value
    position = [a.name for a in target._schema.arguments].index(value)
    return node.args[position] if position < len(node.args) else node.kwargs[value]
