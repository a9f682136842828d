"""How operators become calls that write given memory: out forms, lowerings of our own, and decompositions."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch.fx import Node

from export_passes.branches import is_control
from export_passes.method_graph import is_view, mutated_by
from export_passes.operator_traits import traits_of

aten = torch.ops.aten

# Arguments that say how memory is made; an out form is given memory and may lack them.
MEMORY_ARGUMENTS = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format"})

COPIES = frozenset({aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default})
"""The result is the first argument, converted to the result's dtype and strides: one `copy_` into it."""

EMPTY = frozenset(
    {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default,
     aten.new_empty_strided.default, aten.empty_permuted.default}
)  # fmt: skip
"""The result is memory and no call at all."""

FILLS: dict[torch._ops.OpOverload, float | str] = {
    aten.zeros.default: 0, aten.zeros_like.default: 0, aten.new_zeros.default: 0,
    aten.ones.default: 1, aten.ones_like.default: 1, aten.new_ones.default: 1,
    aten.full.default: "fill_value", aten.full_like.default: "fill_value", aten.new_full.default: "fill_value",
    aten.scalar_tensor.default: "s",
}  # fmt: skip
"""The result is one number everywhere: that number, or the name of the argument that gives it."""


@functools.cache
def out_form(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the overload of `target` that writes its results to keyword arguments, one per result, if there is one.

    It takes the same arguments under the same names and types, except those of `MEMORY_ARGUMENTS`.
    """
    schema = target._schema
    wanted = {a.name: str(a.type) for a in schema.arguments}
    results = len(schema.returns)
    if (
        "mkldnn" in schema.name
        or not results
        or any(str(r.type) != "Tensor" or r.alias_info is not None for r in schema.returns)
    ):
        return None
    packet = target.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        arguments = {a.name: a for a in candidate._schema.arguments}
        extra = [a for a in arguments.values() if a.name not in wanted]
        same = all(str(arguments[n].type) == wanted[n] for n in wanted if n in arguments)
        missing = wanted.keys() - arguments.keys() - MEMORY_ARGUMENTS
        outs = [a for a in extra if a.kwarg_only and a.alias_info and a.alias_info.is_write and str(a.type) == "Tensor"]
        if same and not missing and len(outs) == len(extra) == results:
            return candidate
    return None


def out_names(target: torch._ops.OpOverload, out: torch._ops.OpOverload) -> tuple[str, ...]:
    """Return the names of the arguments of `out` that take the results of `target`, in the order of the results."""
    known = {a.name for a in target._schema.arguments}
    return tuple(a.name for a in out._schema.arguments if a.name not in known)


def is_functional(target: torch._ops.OpOverload) -> bool:
    """Return whether `target` makes new tensors, which need memory, rather than views or what it was given."""
    returns = [r for r in target._schema.returns if "Tensor" in str(r.type)]
    return bool(returns) and all(r.alias_info is None for r in returns) and traits_of(target).view_of is None


@functools.cache
def _has_lowering(target: torch._ops.OpOverload) -> bool:
    special = target in COPIES or target in EMPTY or target in FILLS
    return special or not is_functional(target) or out_form(target) is not None


def can_lower(node: Node) -> bool:
    """Return whether a computation can be called with the memory of its results given."""
    if "region" in node.meta or is_view(node) or is_control(node):
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return _has_lowering(node.target) and (is_functional(node.target) or bool(mutated_by(node)))


@functools.cache
def decomposition_of(target: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """Return how to compute `target` with other operators, where its own form will not do."""
    if target in _DECOMPOSITIONS:
        return _DECOMPOSITIONS[target]
    if torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
        # Made of other operators; whether such a one views or copies is seen by taking it apart.
        return target.decompose
    if _has_lowering(target):
        return None
    return _core_decompositions().get(target)


@functools.cache
def _core_decompositions() -> dict[Any, Callable[..., Any]]:
    return dict(core_aten_decompositions())


def _embedding(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> torch.Tensor:
    """Pick rows; the out form of `embedding` would compute them elsewhere and copy."""
    rows = torch.ops.aten.index_select.default(weight, 0, indices.reshape(-1))
    return rows.view((*indices.shape, *weight.shape[1:]))


_DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {aten.embedding.default: _embedding}
