"""The planner of a method: one buffer per device and kind, each planned on its own and always verified."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from device_core.device import Device
from device_core.schema.types import BufferKind, PlannedBuffer
from torch.fx import Node

from export_passes.lifetimes import graph_lifetimes
from export_passes.memory_plan.greedy import greedy
from export_passes.memory_plan.plan import Block, Plan, peak_nbytes
from export_passes.memory_plan.verify import verify
from export_passes.method_graph import MethodGraph, is_tensor, root_of, source_of, spec_of
from export_passes.operator_traits import nodes_in

HOST_ALIGNMENT = 64
DEVICE_ALIGNMENT = 256

Planner = Callable[..., Plan]
"""Takes blocks and the keyword `alignment`; returns a plan: `greedy` or `naive`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The buffers of a method, and for each tensor that is planned its buffer and offset in bytes.

    peaks: per buffer, the largest sum of bytes that are alive together.
    """

    buffers: tuple[PlannedBuffer, ...]
    places: Mapping[Node, tuple[int, int]]
    peaks: tuple[int, ...]


def alignment_of(device: Device) -> int:
    """Return the alignment of tensors on `device`, in bytes."""
    return HOST_ALIGNMENT if device.is_host else DEVICE_ALIGNMENT


def plan_memory(method: MethodGraph, *, planner: Planner = greedy) -> MemoryPlan:
    """Plan the tensors of a method that are its own: all but constants, state and what the caller supplies.

    Buffers are ordered by device (host first) and then kind. Sizes are those of the largest inputs.
    """
    lives = graph_lifetimes(method)
    groups: dict[tuple[Device, BufferKind], list[Node]] = {}
    outputs = {root_of(node) for node in nodes_in(method.output_node.args) if is_tensor(node)}
    for node in lives:
        kind = _kind(node, method, outputs)
        if kind is not None:
            groups.setdefault((spec_of(node).device, kind), []).append(node)
    buffers: list[PlannedBuffer] = []
    peaks: list[int] = []
    places: dict[Node, tuple[int, int]] = {}
    for (device, kind), nodes in sorted(groups.items(), key=lambda item: item[0]):
        blocks = [Block(name=n.name, nbytes=spec_of(n).span_nbytes, lifetime=lives[n]) for n in nodes]
        plan = planner(blocks, alignment=alignment_of(device))
        verify(blocks, plan, alignment=alignment_of(device))
        places.update({node: (len(buffers), offset) for node, offset in zip(nodes, plan.offsets, strict=True)})
        buffers.append(PlannedBuffer(nbytes=plan.nbytes, device=str(device), kind=kind))
        peaks.append(peak_nbytes(blocks, alignment_of(device)))
    return MemoryPlan(buffers=tuple(buffers), places=places, peaks=tuple(peaks))


def _kind(node: Node, method: MethodGraph, outputs: set[Node]) -> BufferKind | None:
    """Return the kind of buffer that holds a tensor; None where its bytes are not the method's to plan."""
    source = source_of(node)
    if source is not None:
        return "io" if source.kind == "input" and method.config.plan_inputs else None
    if node in outputs:
        return "io" if method.config.plan_outputs else None
    return "scratch"
