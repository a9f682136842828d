"""Specs: every tensor gets a frozen `TensorSpec`; symbols get their names and ranges."""

from collections.abc import Iterable

import torch
from torch.fx import Node

from export_passes.errors import UnsupportedError
from export_passes.graph_pass import MethodPass, NodeError, failures_at
from export_passes.method_graph import MethodGraph, is_tensor, is_view, root_of, source_of, spec_of, view_of
from export_passes.symbols import Size, SymbolTable
from export_passes.tensor_spec import TensorSpec


class Specs(MethodPass):
    """The pass around `assign_specs`."""

    name = "specs"

    def run_on(self, method: MethodGraph) -> None:
        """Describe every tensor."""
        assign_specs(method)

    def ensures(self, method: MethodGraph) -> None:
        """Every tensor has a spec, and every view names its storage."""
        require_specs(method)
        for node in method.graph.nodes:
            if is_view(node) and node.target is not view_of:
                raise NodeError(node, f"{node.target} is a view that was not resolved")


def assign_specs(method: MethodGraph) -> None:
    """Fill in `method.symbols` and the spec of every tensor; specs that are there are kept.

    From here on a view is a node `view_of(storage)`: all there is to know of it is in its spec.
    Raises NodeError where a size depends on data or has no upper bound, or state has gaps or permuted strides.
    """
    method.symbols = SymbolTable.of_inputs(_input_sizes(method), method.ranges)
    for node in method.graph.nodes:
        if is_tensor(node) and "spec" not in node.meta:
            with failures_at(node):
                base = root_of(node).meta["val"] if is_view(node) else None
                node.meta["spec"] = TensorSpec.of(node.meta["val"], method.symbols, base=base)
                _check_state(node)
    _describe_views(method)


def require_specs(method: MethodGraph) -> None:
    """Raise NodeError where a tensor has no spec."""
    for node in method.graph.nodes:
        if is_tensor(node) and "spec" not in node.meta:
            raise NodeError(node, "has no spec: the pass `specs` comes first")


def contiguous_spec(tensor: Node, symbols: SymbolTable) -> TensorSpec:
    """Return the spec of a row-major tensor of the sizes and dtype of `tensor`."""
    value = tensor.meta["val"]
    with value.fake_mode:
        return TensorSpec.of(torch.empty(value.shape, dtype=value.dtype), symbols)


def _describe_views(method: MethodGraph) -> None:
    """Replace each view operator by a node that names the storage alone."""
    for node in method.operators:
        if is_tensor(node) and is_view(node) and node.target is not view_of:
            with method.graph.inserting_after(node):
                view = method.graph.create_node("call_function", view_of, (root_of(node),), {}, name=node.name)
            view.name, node.name = node.name, view.name
            view.meta = node.meta
            node.replace_all_uses_with(view)
    for node in reversed(method.operators):
        if is_view(node) and node.target is not view_of:
            method.graph.erase_node(node)


def _input_sizes(method: MethodGraph) -> dict[str, Iterable[Size]]:
    sizes: dict[str, Iterable[Size]] = {}
    for node in method.placeholders:
        source, value = source_of(node), node.meta.get("val")
        if source is not None and source.kind == "input":
            if isinstance(value, torch.Tensor):
                sizes[source.name] = value.shape
            elif isinstance(value, torch.SymInt):
                sizes[source.name] = (value,)
            elif not isinstance(value, int | float | str | bool | None):
                raise NodeError(node, f"input: expected a tensor or a plain value, got {type(value).__name__}")
    return sizes


def _check_state(node: Node) -> None:
    source = source_of(node)
    if source is not None and source.kind == "state" and not spec_of(node).is_contiguous:
        raise UnsupportedError(
            f"state {source.name!r}: expected a contiguous tensor, got strides {spec_of(node).strides}"
        )
