"""Classify state: a constant that any method writes is state of the program, in every method."""

import dataclasses

from export_passes.errors import UnsupportedError
from export_passes.graph_pass import GraphPass
from export_passes.method_graph import ProgramGraph, mutated_by, root_of, source_of
from export_passes.shared_tensors import overlapping_state


class ClassifyState(GraphPass):
    """The pass around `classify_state`."""

    name = "classify_state"

    def run(self, program: ProgramGraph) -> None:
        """Tell states from constants."""
        classify_state(program)


def classify_state(program: ProgramGraph) -> None:
    """Fill in `program.state` and mark the placeholders that stand for state.

    Raises UnsupportedError where a state shares memory with another constant: each has its own in a program.
    """
    sources = [
        source_of(root_of(written)) for m in program.methods for node in m.operators for written in mutated_by(node)
    ]
    program.state |= {source.name for source in sources if source is not None and source.kind != "input"}
    if overlaps := overlapping_state(program.tensors, program.state):
        pairs = ", ".join(f"{a!r} and {b!r}" for a, b in overlaps)
        raise UnsupportedError(f"a method writes a buffer that shares memory with another: {pairs}")
    for method in program.methods:
        for node in method.placeholders:
            source = source_of(node)
            if source is not None and source.kind == "constant" and source.name in program.state:
                node.meta["source"] = dataclasses.replace(source, kind="state")
