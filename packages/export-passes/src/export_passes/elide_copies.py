"""Elide copies: a tensor that goes to the host and comes back to its device is used where it is."""

from torch.fx import Node

from export_passes.graph_pass import MethodPass, NodeError
from export_passes.insert_copies import d2h, h2d
from export_passes.method_graph import MethodGraph, mutated_by, root_of, spec_of
from export_passes.specs import require_specs


class ElideCopies(MethodPass):
    """The pass around `elide_copies`."""

    name = "elide_copies"

    def requires(self, method: MethodGraph) -> None:
        """Tensors have specs."""
        require_specs(method)

    def run_on(self, method: MethodGraph) -> None:
        """Remove round trips and copies that nobody reads."""
        elide_copies(method)

    def ensures(self, method: MethodGraph) -> None:
        """Every copy is read, directly or through a view."""
        for node in method.operators:
            if _is_unread(node):
                raise NodeError(node, "is a copy that nobody reads")


def elide_copies(method: MethodGraph) -> None:
    """Use `x` for `h2d(d2h(x))` on one device, unless something is written in between; then drop unread copies.

    What counts as in between lasts until the last use of the result: it must still equal `x` there.
    """
    order = {node: i for i, node in enumerate(method.graph.nodes)}
    writes = _writes(method, order)
    for node in method.operators:
        if node.target is h2d() and (original := _round_trip(node)) is not None:
            down = node.args[0]
            assert isinstance(down, Node)
            last = max((order[user] for user in _uses(node)), default=order[node])
            touched = [
                *(i for i in writes.get(root_of(original), ()) if order[down] < i < last),
                *(i for i in writes.get(down, ()) if order[down] < i < order[node]),
                *writes.get(node, ()),
            ]
            if not touched:
                node.replace_all_uses_with(original)
    for node in reversed(method.operators):
        if _is_unread(node):
            method.graph.erase_node(node)


def _is_unread(node: Node) -> bool:
    return node.target in (h2d(), d2h()) and not node.users


def _round_trip(node: Node) -> Node | None:
    """Return `x` where `node` is `h2d(d2h(x))` and both ends are on one device and look the same."""
    down = node.args[0]
    if not isinstance(down, Node) or down.target is not d2h():
        return None
    original = down.args[0]
    assert isinstance(original, Node)
    one, other = spec_of(original), spec_of(node)
    return original if (one.device, one.sizes, one.strides) == (other.device, other.sizes, other.strides) else None


def _writes(method: MethodGraph, order: dict[Node, int]) -> dict[Node, list[int]]:
    writes: dict[Node, list[int]] = {}
    for node in method.operators:
        for root in dict.fromkeys(root_of(written) for written in mutated_by(node)):
            writes.setdefault(root, []).append(order[node])
    return writes


def _uses(node: Node) -> list[Node]:
    """Return the users of `node` and of its views."""
    return [use for user in node.users for use in ([user, *_uses(user)] if root_of(user) is node else [user])]
