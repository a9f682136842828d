"""What an operator's schema says of it: which argument its result views, which arguments it mutates."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Node

aten = torch.ops.aten

# Views whose schema does not say so.
_UNDECLARED_VIEWS = {aten._unsafe_view.default: 0}

# Checks of what the export saw; the runtime checks its inputs itself.
_CHECKS = {
    "aten::_assert_async", "aten::_assert_async.msg", "aten::_assert_scalar", "aten::_assert_tensor_metadata",
    "aten::sym_constrain_range", "aten::sym_constrain_range_for_size", "aten::_functional_assert_async",
    "aten::_functional_assert_async.msg",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperatorTraits:
    """Arguments by (position, name).

    view_of: the argument whose storage the results share, where nothing is written.
    mutated: the arguments that are written. is_query: whether it only tells something about its arguments, such as a
    size, which is known when a graph is built.
    """

    view_of: tuple[int, str] | None
    mutated: tuple[tuple[int, str], ...]
    is_query: bool


@functools.cache
def traits_of(operator: torch._ops.OpOverload) -> OperatorTraits:
    """Read the traits of `operator` from its schema."""
    arguments = [(i, a.name, a.alias_info) for i, a in enumerate(operator._schema.arguments)]
    mutated = tuple((i, name) for i, name, alias in arguments if alias is not None and alias.is_write)
    returns = [r.alias_info for r in operator._schema.returns]
    view_of = next((i for i, _, alias in arguments if alias is not None and not alias.is_write), None)
    if view_of is None or not any(alias is not None and not alias.is_write for alias in returns):
        view_of = _UNDECLARED_VIEWS.get(operator)
    tells = not mutated and not any("Tensor" in str(r.type) for r in operator._schema.returns)
    return OperatorTraits(None if view_of is None else (view_of, arguments[view_of][1]), mutated, tells)


def is_check(target: object) -> bool:
    """Return whether an operator only checks what the export saw."""
    return isinstance(target, torch._ops.OpOverload) and target.name() in _CHECKS


def argument(node: Node, where: tuple[int, str]) -> object:
    """Return the argument of `node` at a position or under its name; None where it is left out."""
    position, name = where
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def nodes_in(value: object) -> Iterator[Node]:
    """Yield the nodes within an argument, in order."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nodes_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from nodes_in(item)
