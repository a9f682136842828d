"""`ProgramGraph` and `MethodGraph`: what the passes work on, and questions about who shares and who writes memory."""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch.fx import Graph, Node

from export_passes.config import MethodConfig
from export_passes.operator_traits import argument, nodes_in, traits_of
from export_passes.symbols import SymbolTable
from export_passes.tensor_spec import TensorSpec

SourceKind = Literal["input", "constant", "state"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a placeholder's bytes come from: an input of the method, or a constant or state of the program."""

    kind: SourceKind
    name: str


@dataclass(slots=True, kw_only=True)
class MethodGraph:
    """One method on its way to a program; each pass rewrites `graph` in place or replaces it.

    ranges: bounds of the symbols of sizes, as the export gives them. symbols: filled in by the pass `specs`.
    placeholders carry `meta["source"]`, tensors `meta["val"]` (fake) and, after `specs`, `meta["spec"]`;
    operators carry `meta["placement"]`.
    """

    name: str
    graph: Graph
    config: MethodConfig
    ranges: dict[object, object] = field(default_factory=dict)
    symbols: SymbolTable = field(default_factory=SymbolTable)

    @property
    def placeholders(self) -> list[Node]:
        """Return the placeholders, in order."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def operators(self) -> list[Node]:
        """Return the nodes that compute or view, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    @property
    def outputs(self) -> tuple[object, ...]:
        """Return the arguments of the output node."""
        return tuple(self.output_node.args[0])  # type: ignore[arg-type]

    @property
    def output_node(self) -> Node:
        """Return the output node."""
        return next(iter(reversed(self.graph.nodes)))


@dataclass(slots=True, kw_only=True)
class ProgramGraph:
    """All methods of a program, with the tensors that their constants and states start from."""

    methods: tuple[MethodGraph, ...]
    tensors: dict[str, torch.Tensor]
    state: set[str] = field(default_factory=set)


def source_of(node: Node) -> Source | None:
    """Return where a placeholder's bytes come from; None for other nodes."""
    return node.meta.get("source") if node.op == "placeholder" else None


def spec_of(node: Node) -> TensorSpec:
    """Return the spec of a tensor."""
    spec = node.meta["spec"]
    assert isinstance(spec, TensorSpec)
    return spec


def is_tensor(node: Node) -> bool:
    """Return whether a node stands for one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def view_of(storage: torch.Tensor) -> torch.Tensor:
    """Name part of a tensor's storage; which part, the spec says. Stands in graphs and is never called."""
    raise NotImplementedError("view_of only stands in graphs")


def new_memory() -> torch.Tensor:
    """Stand for memory that a later call writes; its shape is in the spec. Stands in graphs and is never called."""
    raise NotImplementedError("new_memory only stands in graphs")


def is_allocation(node: Node) -> bool:
    """Return whether `node` is memory that later calls write."""
    return node.target is new_memory


def view_base(node: Node) -> Node | None:
    """Return the tensor whose storage `node` shares, if it is a view."""
    if node.op != "call_function":
        return None
    if node.target is view_of:
        return node.args[0]  # type: ignore[return-value]
    call = node.args[0] if node.target is operator.getitem else node
    if not isinstance(call, Node) or not isinstance(call.target, torch._ops.OpOverload):
        return None
    where = traits_of(call.target).view_of
    base = argument(call, where) if where is not None else None
    return base if isinstance(base, Node) else None


def is_view(node: Node) -> bool:
    """Return whether `node` only names storage: a view, the list a view operator returns, or an item of it."""
    return view_base(node) is not None


def root_of(node: Node) -> Node:
    """Return the tensor that owns the storage of `node`."""
    while (base := view_base(node)) is not None:
        node = base
    return node


def mutated_by(node: Node) -> tuple[Node, ...]:
    """Return the arguments that an operator or opaque region writes."""
    if "mutated" in node.meta:
        return tuple(n for i in node.meta["mutated"] for n in nodes_in(node.args[i]))
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return ()
    return tuple(n for where in traits_of(node.target).mutated for n in nodes_in(argument(node, where)))


def is_computation(node: Node) -> bool:
    """Return whether `node` does something when the program runs: it is no view, item or placeholder."""
    return node.op == "call_function" and node.target is not operator.getitem and not is_view(node)


def tensors_read(node: Node) -> Iterator[Node]:
    """Yield the tensors among the arguments of a node, in order, those it mutates included."""
    yield from (n for n in nodes_in((node.args, node.kwargs)) if is_tensor(n))


def results_of(node: Node) -> list[Node]:
    """Return the tensors that a computation makes: itself, or the items of its several results."""
    if is_tensor(node):
        return [node]
    return [user for user in node.users if user.target is operator.getitem and is_tensor(user)]
