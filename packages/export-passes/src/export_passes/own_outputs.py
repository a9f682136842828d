"""Own outputs: where the caller supplies the memory of outputs, each output is a tensor of its own that fills it."""

import dataclasses
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from export_passes.graph_pass import MethodPass, NodeError
from export_passes.method_graph import MethodGraph, is_tensor, is_view, spec_of
from export_passes.operator_traits import nodes_in
from export_passes.placement import Placement
from export_passes.specs import contiguous_spec, require_specs


class OwnOutputs(MethodPass):
    """The pass around `own_outputs`."""

    name = "own_outputs"

    def requires(self, method: MethodGraph) -> None:
        """Tensors have specs."""
        require_specs(method)

    def run_on(self, method: MethodGraph) -> None:
        """Copy outputs that are not tensors of their own."""
        if not method.config.plan_outputs:
            own_outputs(method)

    def ensures(self, method: MethodGraph) -> None:
        """Every output that the caller supplies is one tensor that an operator makes."""
        tensors = [n for n in nodes_in(method.output_node.args) if is_tensor(n)]
        if not method.config.plan_outputs:
            for node in tensors:
                if node.op == "placeholder" or is_view(node) or tensors.count(node) > 1:
                    raise NodeError(node, "is an output without memory of its own")


def own_outputs(method: MethodGraph) -> None:
    """Copy each output that is an input, a constant, a state, a view, or was returned before."""
    seen: set[Node] = set()

    def own(node: Node) -> Node:
        if not is_tensor(node):
            return node
        fresh = node.op != "placeholder" and not is_view(node) and node not in seen and spec_of(node).is_contiguous
        seen.add(node)
        return node if fresh else _copy_of(node, method)

    output: Any = method.output_node
    output.args = map_arg(output.args, own)


def _copy_of(node: Node, method: MethodGraph) -> Node:
    device, name = spec_of(node).device, f"{node.name}_output"
    with method.graph.inserting_before(method.output_node):
        copy = method.graph.create_node("call_function", torch.ops.aten.clone.default, (node,), {}, name)
    spec = dataclasses.replace(contiguous_spec(node, method.symbols), device=device)
    copy.meta = {"val": node.meta["val"], "spec": spec, "device": device, "placement": Placement(device)}
    return copy
