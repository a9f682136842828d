"""Inline: blocks that set a mode, `no_grad` and `autocast`, and branches become part of the graph around them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops import wrap_with_autocast, wrap_with_set_grad_enabled
from torch.fx import Graph, GraphModule, Node

from export_passes.branches import flatten_branches
from export_passes.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Autocast:
    """The settings of a block of `torch.autocast`."""

    device_type: str
    dtype: torch.dtype | None
    enabled: bool

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which operators on host tensors cast as those of the block do."""
        if self.device_type != "cpu":
            # The block changes nothing for the host tensors that the export saw.
            return nullcontext()
        return torch.autocast("cpu", dtype=self.dtype, enabled=self.enabled, cache_enabled=False)


def inline_blocks(graph: Graph, modules: Mapping[str, GraphModule]) -> None:
    """Replace calls of blocks by their nodes; those of an autocast block get its settings as `meta["autocast"]`.

    modules: the blocks, by the names under which the graph refers to them. Raises UnsupportedError for an autocast
    block of another device in a graph that was exported with tensors on it, and for branches that return numbers.
    """
    for node in list(graph.nodes):
        if node.target is wrap_with_set_grad_enabled:
            _, block, *args = node.args
            _inline(graph, node, modules[str(block.target)], args, None)
        elif node.target is wrap_with_autocast:
            device_type, dtype, enabled, _, block, *args = node.args
            if device_type != "cpu" and any(_device_type(argument) == device_type for argument in args):
                raise UnsupportedError(f"node {node.name!r}: autocast of {device_type}: expected an export on the host")
            _inline(graph, node, modules[str(block.target)], args, Autocast(device_type, dtype, enabled))
        elif node.target is torch.ops.higher_order.cond:
            branches = [modules[str(branch.target)] for branch in node.args[1:3]]
            flatten_branches(graph, node, branches, lambda module, args: _copied(graph, module, args, None))
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def _inline(graph: Graph, call: Node, module: GraphModule, args: Sequence[Any], mode: Autocast | None) -> None:
    with graph.inserting_before(call):
        outputs = _copied(graph, module, args, mode)
    for item in list(call.users):
        item.replace_all_uses_with(outputs[item.args[1]])  # type: ignore[index]  # items of a tuple
        graph.erase_node(item)
    graph.erase_node(call)


def _copied(graph: Graph, module: GraphModule, args: Sequence[Any], mode: Autocast | None) -> Sequence[Any]:
    """Copy the nodes of `module`, given `args`, to where `graph` is being added to; return its results."""
    inner = Graph()
    results = inner.graph_copy(module.graph, {})
    inner.output(results)
    inline_blocks(inner, _submodules(module))
    placeholders = [node for node in inner.nodes if node.op == "placeholder"]
    values: dict[Node, Any] = dict(zip(placeholders, args, strict=True))
    outputs: Any = graph.graph_copy(inner, values)
    if mode is not None:
        for node in set(values.values()) - set(args):
            node.meta.setdefault("autocast", mode)
    return tuple(outputs)


def _submodules(module: torch.nn.Module) -> dict[str, GraphModule]:
    return {name: child for name, child in module.named_children() if isinstance(child, GraphModule)}


def blocks_of(graph: Graph) -> dict[str, GraphModule]:
    """Return the blocks that the owner of a graph holds."""
    return _submodules(graph.owning_module) if graph.owning_module is not None else {}


def _device_type(argument: Any) -> str | None:
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    return value.device.type if isinstance(value, torch.Tensor) else None
