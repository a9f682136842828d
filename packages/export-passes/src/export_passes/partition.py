"""Partition: every operator gets the place that the partitioner gives it; opaque regions become one node each."""

from torch.fx import Node

from export_passes.extract_regions import extract_regions
from export_passes.graph_pass import GraphPass, NodeError, failures_at, failures_named
from export_passes.method_graph import MethodGraph, ProgramGraph
from export_passes.placement import Partitioner, Placement


class Partition(GraphPass):
    """The pass around `place` and `extract_regions`."""

    name = "partition"

    def __init__(self, partitioner: Partitioner | None) -> None:
        self._partitioner = partitioner

    def run(self, program: ProgramGraph) -> None:
        """Place every operator of every method."""
        if self._partitioner is None:
            return
        for method in program.methods:
            with failures_named(self.name, method.name):
                place(method, self._partitioner)
                extract_regions(method)


def place(method: MethodGraph, partitioner: Partitioner) -> None:
    """Ask for the place of each operator that has none yet."""
    for node in method.operators:
        if "placement" not in node.meta:
            with failures_at(node):
                placement = partitioner(method.name, node)
            if placement is not None:
                node.meta["placement"] = _checked(placement, node)


def _checked(placement: object, node: Node) -> Placement:
    if not isinstance(placement, Placement):
        raise NodeError(node, f"the partitioner: expected a Placement or None, got {placement!r}")
    return placement
