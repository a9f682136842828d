"""Insert copies: where a tensor is read on another device than its home, it is copied there, once."""

import dataclasses
from typing import Any

import torch
from device_core import copy_ops
from device_core.device import HOST, Device
from torch.fx import Node
from torch.fx.node import map_arg

from export_passes.branches import is_join
from export_passes.graph_pass import MethodPass, NodeError
from export_passes.method_graph import (
    MethodGraph,
    is_computation,
    is_tensor,
    mutated_by,
    root_of,
    source_of,
    spec_of,
    tensors_read,
    view_base,
)
from export_passes.placement import Placement
from export_passes.propagate_device import device_of
from export_passes.specs import contiguous_spec, require_specs
from export_passes.tensor_spec import TensorSpec


def h2d() -> torch._ops.OpOverload:
    """Return the operator that copies from the host to a device."""
    copy_ops.register()
    return torch.ops.device_copy.h2d.default


def d2h() -> torch._ops.OpOverload:
    """Return the operator that copies from a device to the host."""
    copy_ops.register()
    return torch.ops.device_copy.d2h.default


class InsertCopies(MethodPass):
    """The pass around `insert_copies`."""

    name = "insert_copies"

    def requires(self, method: MethodGraph) -> None:
        """Tensors have specs."""
        require_specs(method)

    def run_on(self, method: MethodGraph) -> None:
        """Make every operator read on its own device."""
        insert_copies(method)

    def ensures(self, method: MethodGraph) -> None:
        """No operator reads a tensor of another device, but for the copies; outputs are where they were asked for."""
        for node in method.operators:
            if is_computation(node) and not is_copy(node):
                for tensor in tensors_read(node):
                    if spec_of(tensor).device != device_of(node):
                        raise NodeError(node, f"runs on {device_of(node)} and reads {tensor.name} elsewhere")


def is_copy(node: Node) -> bool:
    """Return whether `node` copies between the host and a device, in whichever form."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == copy_ops.NAMESPACE


def insert_copies(method: MethodGraph) -> None:
    """Insert one copy per (tensor, device), shared by all that read it there until its memory is written again.

    Constants are not copied: each device that reads one has its own, uploaded when the program is loaded. Outputs are
    copied to the host unless the method leaves them on their device.
    """
    copier = _Copier(method)
    for node in list(method.graph.nodes):
        if is_computation(node) and not is_copy(node):
            copier.bring(node, device_of(node))
            copier.note_writes(node)
            if is_join(node):
                copier.forget()
        elif node.op == "output" and not method.config.skip_d2h_for_method_outputs:
            copier.bring(node, HOST)


class _Copier:
    """Walks a method in order and remembers which copies are still equal to what they were made from."""

    def __init__(self, method: MethodGraph) -> None:
        self._method = method
        self._copies: dict[tuple[Node, Device], Node] = {}
        self._replicas: dict[tuple[Node, Device], Node] = {}

    def bring(self, node: Node, device: Device) -> None:
        """Let `node` read all its tensors on `device`."""
        node.args, node.kwargs = map_arg(
            (node.args, node.kwargs), lambda n: self._on(n, device, node) if is_tensor(n) else n
        )

    def note_writes(self, node: Node) -> None:
        """Forget the copies of memory that `node` writes."""
        roots = {root_of(written) for written in mutated_by(node)}
        self._copies = {key: copy for key, copy in self._copies.items() if root_of(key[0]) not in roots}

    def forget(self) -> None:
        """Forget all copies: those made in a branch are not there on the other way."""
        self._copies.clear()

    def _on(self, tensor: Node, device: Device, reader: Node) -> Node:
        home = spec_of(tensor).device
        if home == device:
            return tensor
        source = source_of(root_of(tensor))
        if source is not None and source.kind == "constant":
            return self._replica(tensor, device)
        if (tensor, device) in self._copies:
            return self._copies[tensor, device]
        if not home.is_host and not device.is_host:
            # Devices do not see each other: by way of the host.
            copy = self._copy(h2d(), self._on(tensor, HOST, reader), device, reader)
        elif home.is_host:
            copy = self._copy(h2d(), self._packed(tensor, reader), device, reader)
        else:
            copy = self._copy(d2h(), self._packed(tensor, reader), device, reader)
        self._copies[tensor, device] = copy
        return copy

    def _copy(self, target: Any, tensor: Node, device: Device, reader: Node) -> Node:
        spec = dataclasses.replace(spec_of(tensor), device=device, offset_bytes=0)
        name = f"{tensor.name}_{str(device).replace(':', '')}"
        return self._insert(target, (tensor,), spec, name, reader)

    def _packed(self, tensor: Node, reader: Node) -> Node:
        """Return `tensor` without gaps: bytes cross the bus in one piece."""
        home = spec_of(tensor).device
        if spec_of(tensor).is_contiguous:
            return tensor
        if (tensor, home) not in self._copies:
            spec = dataclasses.replace(contiguous_spec(tensor, self._method.symbols), device=home)
            name = f"{tensor.name}_packed"
            self._copies[tensor, home] = self._insert(torch.ops.aten.clone.default, (tensor,), spec, name, reader)
        return self._copies[tensor, home]

    def _insert(self, target: Any, args: Any, spec: TensorSpec, name: str, reader: Node) -> Node:
        with self._method.graph.inserting_before(reader):
            node = self._method.graph.create_node("call_function", target, args, {}, name=name)
        node.meta = {
            "val": args[0].meta["val"], "spec": spec, "device": spec.device, "placement": Placement(spec.device)
        }  # fmt: skip
        return node

    def _replica(self, tensor: Node, device: Device) -> Node:
        """Return the constant, or the view of one, on another device."""
        if (tensor, device) not in self._replicas:
            base = view_base(tensor)
            args = [] if base is None else [self._replica(base, device)]
            after = tensor if base is None else args[0]
            with self._method.graph.inserting_after(after):
                name = f"{tensor.name}_{str(device).replace(':', '')}"
                target = tensor.name if base is None else tensor.target
                replica = self._method.graph.create_node(tensor.op, target, tuple(args), {}, name=name)
            replica.meta = dict(tensor.meta) | {"spec": dataclasses.replace(spec_of(tensor), device=device)}
            self._replicas[tensor, device] = replica
        return self._replicas[tensor, device]
