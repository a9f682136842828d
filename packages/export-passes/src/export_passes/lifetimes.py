"""Lifetimes: from which step to which step of a method the bytes of each tensor matter."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from torch.fx import Node

from export_passes.method_graph import MethodGraph, is_allocation, is_computation, is_tensor, root_of, tensors_read
from export_passes.operator_traits import nodes_in


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Steps `first` to `last`, both included."""

    first: int
    last: int

    def overlaps(self, other: "Lifetime") -> bool:
        """Return whether both are alive in one step."""
        return self.first <= other.last and other.first <= self.last


def lifetimes[K: Hashable](
    steps: Sequence[Iterable[K]], *, from_start: Iterable[K], to_end: Iterable[K]
) -> dict[K, Lifetime]:
    """Return the lifetime of everything that `steps` touch, reading or writing.

    What is alive `from_start` is there before step 0, what is alive `to_end` still after the last.
    """
    first: dict[K, int] = dict.fromkeys(from_start, 0)
    last: dict[K, int] = dict.fromkeys(first, 0)
    for step, touched in enumerate(steps):
        for key in touched:
            first.setdefault(key, step)
            last[key] = step
    for key in to_end:
        first.setdefault(key, len(steps))
        last[key] = len(steps)
    return {key: Lifetime(first[key], last[key]) for key in first}


def graph_lifetimes(method: MethodGraph) -> dict[Node, Lifetime]:
    """Return the lifetimes of the tensors that own storage, once `out_variants` has run; a step is a call.

    Uses of a view are uses of its storage. Inputs and outputs keep their bytes for the whole call, so that a caller
    who repeats it finds them again; tensors that no call touches are left out, unless they are inputs or outputs.
    """
    calls = [node for node in method.operators if is_computation(node) and not is_allocation(node)]
    steps = [dict.fromkeys(root_of(tensor) for tensor in tensors_read(call)) for call in calls]
    outputs = [root_of(node) for node in nodes_in(method.output_node.args) if is_tensor(node)]
    inputs = [node for node in method.placeholders if is_tensor(node)]
    return lifetimes(steps, from_start=inputs, to_end=[*outputs, *inputs])
