"""`lower`: exported programs to one device-aware program, pass after pass."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from device_core.schema.codec import ProgramWriter
from device_core.schema.types import Program

from export_passes.classify_state import ClassifyState
from export_passes.config import BackendConfig
from export_passes.decompose import Decompose
from export_passes.elide_copies import ElideCopies
from export_passes.emit.emitter import emit_program
from export_passes.graph_pass import GraphPass, failures_named, run_pass
from export_passes.importer import Exported, import_program
from export_passes.insert_copies import InsertCopies
from export_passes.memory_plan.greedy import greedy
from export_passes.memory_plan.planner import Planner, plan_memory
from export_passes.method_graph import ProgramGraph
from export_passes.out_variants import OutVariants
from export_passes.own_outputs import OwnOutputs
from export_passes.partition import Partition
from export_passes.propagate_device import PropagateDevice
from export_passes.specs import Specs


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A program, the tensors of its constants by name, and the payloads of its opaque regions by key.

    Constants of an export on fake or `meta` tensors are such tensors: the caller stores the real ones by name.
    """

    program: Program
    constants: Mapping[str, torch.Tensor]
    delegates: Mapping[str, bytes]

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Program:
        """Write a program folder with all constants, which must have bytes; returns the program as written."""
        with ProgramWriter(folder, overwrite=overwrite) as writer:
            for name, tensor in self.constants.items():
                writer.add_constant(name, tensor)
            for key, payload in self.delegates.items():
                writer.add_delegate(key, payload)
            return writer.finish(self.program)


def passes_of(config: BackendConfig) -> tuple[GraphPass, ...]:
    """Return the passes between import and memory planning, in order."""
    return (
        Partition(config.partitioner),
        Decompose(),
        ClassifyState(),
        Specs(),
        PropagateDevice(),
        InsertCopies(),
        ElideCopies(),
        OwnOutputs(),
        OutVariants(),
    )


def lower(
    methods: Mapping[str, Exported], config: BackendConfig | None = None, *, planner: Planner = greedy
) -> Lowered:
    """Turn exported programs, one a method, into a program.

    Methods share parameters, buffers and state by fully qualified name. A buffer that any method writes is state.
    The exported programs are not changed.

    Raises PassError, which names pass, method and node, where something cannot be lowered; ConfigError for settings
    of methods that do not exist; ConstantConflictError where methods disagree about a constant.
    """
    config = config or BackendConfig()
    program = import_program(methods, config)
    run_passes(program, passes_of(config))
    plans = {}
    for method in program.methods:
        with failures_named("memory_plan", method.name):
            plans[method.name] = plan_memory(method, planner=planner)
    emitted, table, delegates = emit_program(program, plans)
    return Lowered(program=emitted, constants=table.tensors, delegates=delegates)


def run_passes(program: ProgramGraph, passes: tuple[GraphPass, ...]) -> None:
    """Run passes in order, each with its conditions."""
    for graph_pass in passes:
        run_pass(graph_pass, program)
