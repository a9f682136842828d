"""From `torch.export` programs to a `ProgramGraph`: copies of the graphs, whose placeholders know their sources."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import Graph, Node

from export_passes.config import BackendConfig
from export_passes.errors import UnsupportedError
from export_passes.inline import blocks_of, inline_blocks
from export_passes.method_graph import MethodGraph, ProgramGraph, Source
from export_passes.shared_tensors import SharedTensors, is_tensor_kind

aten = torch.ops.aten


class Exported(Protocol):
    """What lowering reads of an exported program, as `torch.export.ExportedProgram` has it."""

    @property
    def graph(self) -> Graph:
        """Return the graph, whose nodes carry fake tensors."""
        ...

    @property
    def graph_signature(self) -> ExportGraphSignature:
        """Return which placeholder is what."""
        ...

    @property
    def state_dict(self) -> Mapping[str, Any]:
        """Return parameters and persistent buffers."""
        ...

    @property
    def constants(self) -> Mapping[str, Any]:
        """Return other buffers and lifted constants."""
        ...

    @property
    def range_constraints(self) -> Mapping[Any, Any]:
        """Return the bounds of symbols."""
        ...


def import_program(methods: Mapping[str, Exported], config: BackendConfig) -> ProgramGraph:
    """Copy the graphs of `methods`; the exported programs themselves are never changed.

    Raises ConstantConflictError where methods disagree about a parameter or buffer, UnsupportedError for inputs and
    outputs that are neither tensors nor plain values.
    """
    config.check_methods(methods.keys())
    shared = SharedTensors()
    graphs = tuple(_import_method(name, program, config, shared) for name, program in methods.items())
    return ProgramGraph(methods=graphs, tensors=shared.tensors)


def _import_method(name: str, program: Exported, config: BackendConfig, shared: SharedTensors) -> MethodGraph:
    graph = Graph()
    copies: dict[Node, Node] = {}
    outputs = graph.graph_copy(program.graph, copies)
    sources = _sources(name, program, shared)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, source in zip(placeholders, sources, strict=True):
        node.meta["source"] = source
    graph.output(_user_outputs(name, program, graph, placeholders, list(outputs)))  # type: ignore[arg-type]
    inline_blocks(graph, blocks_of(program.graph))
    ranges = dict(program.range_constraints)
    return MethodGraph(name=name, graph=graph, config=config.of(name), ranges=ranges)


def _sources(method: str, program: Exported, shared: SharedTensors) -> list[Source]:
    sources = []
    for spec in program.graph_signature.input_specs:
        if is_tensor_kind(spec):
            target = str(spec.target)
            tensor = program.state_dict.get(target)
            tensor = program.constants.get(target) if tensor is None else tensor
            sources.append(Source("constant", shared.name(method, spec, tensor)))
        elif spec.kind is InputKind.USER_INPUT:
            sources.append(Source("input", spec.arg.name))
        else:
            raise UnsupportedError(
                f"method {method!r}, input {spec.arg.name!r}: expected a tensor, parameter or buffer, "
                f"got {spec.kind.name.lower().replace('_', ' ')}"
            )
    return sources


def _user_outputs(
    method: str, program: Exported, graph: Graph, placeholders: list[Node], outputs: list[object]
) -> tuple[object, ...]:
    """Return the outputs that callers see; new contents of an input that the graph returns are written to it."""
    signature = program.graph_signature
    by_target = {spec.target: node for spec, node in zip(signature.input_specs, placeholders, strict=True)}
    by_name = {node.name: node for node in placeholders}
    kept = []
    for spec, value in zip(signature.output_specs, outputs, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            kept.append(value)
        elif spec.kind is OutputKind.BUFFER_MUTATION or spec.kind is OutputKind.USER_INPUT_MUTATION:
            target = by_target.get(spec.target) or by_name[str(spec.target)]
            copy = graph.call_function(aten.copy_.default, (target, value))  # type: ignore[arg-type]
            copy.meta["val"] = target.meta["val"]
        else:
            raise UnsupportedError(f"method {method!r}: output of kind {spec.kind.name.lower().replace('_', ' ')}")
    return tuple(kept)
