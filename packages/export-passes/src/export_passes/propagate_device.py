"""Propagate device: a tensor's home is the device of the operator that makes it; memory is written where it is."""

import dataclasses
from collections.abc import Iterator

from device_core.device import HOST, Device
from torch.fx import Node

from export_passes.graph_pass import GraphPass, NodeError, failures_named
from export_passes.method_graph import (
    MethodGraph,
    ProgramGraph,
    is_computation,
    is_tensor,
    mutated_by,
    results_of,
    root_of,
    source_of,
    spec_of,
    tensors_read,
)
from export_passes.placement import Placement
from export_passes.specs import require_specs

Member = Node | str
"""What must share a device: a tensor that owns storage, or a state by its name."""


class PropagateDevice(GraphPass):
    """The pass around `propagate_device`."""

    name = "propagate_device"

    def requires(self, method: MethodGraph) -> None:
        """Tensors have specs."""
        require_specs(method)

    def run(self, program: ProgramGraph) -> None:
        """Give every tensor its home."""
        propagate_device(program)

    def ensures(self, method: MethodGraph) -> None:
        """An operator writes only where it runs, and a view is where its storage is."""
        for node in method.graph.nodes:
            if is_tensor(node) and spec_of(node).device != spec_of(root_of(node)).device:
                raise NodeError(node, "a view is not on the device of its storage")
            for written in mutated_by(node):
                if spec_of(written).device != device_of(node):
                    raise NodeError(node, f"runs on {device_of(node)} and writes {written.name} on another device")


def placement_of(node: Node) -> Placement:
    """Return the place that the partitioner gave an operator."""
    placement = node.meta.get("placement")
    return placement if isinstance(placement, Placement) else Placement()


def device_of(node: Node) -> Device:
    """Return the device on which an operator runs, once this pass has decided."""
    device = node.meta.get("device", HOST)
    assert isinstance(device, Device)
    return device


def propagate_device(program: ProgramGraph) -> None:
    """Decide where operators run and tensors live.

    An operator runs where it is placed, except that one which writes memory runs where that memory is: with the first
    operator, over all methods, that makes or writes it. A method's inputs are on the host, or, where the caller owns
    device tensors, on the first device that reads them; so are constants. Raises NodeError where an opaque region
    would have to move.
    """
    groups = _Groups()
    for method in program.methods:
        for node in _computations(method):
            groups.join([*_written(node), *results_of(node)] if mutated_by(node) else results_of(node))
    homes: dict[Member, Device] = {}
    for method in program.methods:
        for node in method.placeholders:
            if _is_fixed_input(method, node):
                homes[groups.find(node)] = HOST
    for first in (True, False):
        # Opaque regions cannot move, so they choose first.
        for method in program.methods:
            for node in _computations(method):
                if (placement_of(node).backend is not None) is first:
                    for member in (*_written(node), *results_of(node)):
                        homes.setdefault(groups.find(member), placement_of(node).device)
    for method in program.methods:
        with failures_named(PropagateDevice.name, method.name):
            _assign(method, groups, homes)


def _assign(method: MethodGraph, groups: "_Groups", homes: dict[Member, Device]) -> None:
    for node in method.graph.nodes:
        if is_computation(node):
            members = [*_written(node), *results_of(node)]
            node.meta["device"] = homes[groups.find(members[0])] if members else placement_of(node).device
            if placement_of(node).backend is not None and device_of(node) != placement_of(node).device:
                raise NodeError(
                    node,
                    f"an opaque region placed on {placement_of(node).device} writes memory whose home is "
                    f"{device_of(node)}; place both on one device",
                )
    readers = _readers(method)
    for node in method.graph.nodes:
        if is_tensor(node):
            root = root_of(node)
            home = homes.get(groups.find(_member(root)))
            _set_device(node, _first_reader(root, readers) if home is None else home)


def _readers(method: MethodGraph) -> dict[Node, list[Device]]:
    """Return, for each tensor that owns storage, the devices that read it, in order."""
    readers: dict[Node, list[Device]] = {}
    for node in _computations(method):
        for root in dict.fromkeys(root_of(tensor) for tensor in tensors_read(node)):
            readers.setdefault(root, []).append(device_of(node))
    return readers


def _first_reader(root: Node, readers: dict[Node, list[Device]]) -> Device:
    """Choose a home for what no operator makes or writes: a constant, or an input that the caller puts anywhere."""
    source = source_of(root)
    constant = source is not None and source.kind == "constant"
    return next((device for device in readers.get(root, ()) if constant or not device.is_host), HOST)


def _set_device(node: Node, device: Device) -> None:
    if spec_of(node).device != device:
        node.meta["spec"] = dataclasses.replace(spec_of(node), device=device)


def _computations(method: MethodGraph) -> Iterator[Node]:
    return (node for node in method.operators if is_computation(node))


def _written(node: Node) -> list[Member]:
    return [_member(root_of(tensor)) for tensor in mutated_by(node)]


def _member(root: Node) -> Member:
    source = source_of(root)
    return source.name if source is not None and source.kind == "state" else root


def _is_fixed_input(method: MethodGraph, node: Node) -> bool:
    source = source_of(node)
    return source is not None and source.kind == "input" and not method.config.skip_h2d_for_method_inputs


class _Groups:
    """Disjoint sets of members that share a device."""

    def __init__(self) -> None:
        self._parents: dict[Member, Member] = {}

    def find(self, member: Member) -> Member:
        """Return the representative of the set of `member`."""
        while (parent := self._parents.get(member, member)) != member:
            member = parent
        return member

    def join(self, members: list[Member] | list[Node]) -> None:
        """Make one set of all `members`."""
        for other in members[1:]:
            a, b = self.find(members[0]), self.find(other)
            if a != b:
                self._parents[b] = a
