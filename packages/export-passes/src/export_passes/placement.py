"""Placements, and the partitioners that give each operator its own: a device and, for an opaque region, a backend."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from device_core.device import HOST, Device
from torch.fx import Node

from export_passes.backends.backend import Backend


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an operator runs; with a backend it becomes part of an opaque region."""

    device: Device = HOST
    backend: Backend | None = None


class Partitioner(Protocol):
    """Gives the operator `node` of a method its place; None leaves it to the next partitioner, or on the host."""

    def __call__(self, method: str, node: Node) -> Placement | None:
        """Return the place of `node`."""
        ...


@dataclass(frozen=True, slots=True)
class DevicePartitioner:
    """Place every operator, or those for which `where(node)` holds, on one device."""

    device: Device
    where: Callable[[Node], bool] | None = None
    backend: Backend | None = None

    def __call__(self, method: str, node: Node) -> Placement | None:
        """Return the device, unless `where` says no."""
        if self.where is not None and not self.where(node):
            return None
        return Placement(self.device, self.backend)


@dataclass(frozen=True, slots=True)
class FirstOf:
    """Ask several partitioners in turn; the first that answers decides."""

    partitioners: tuple[Partitioner, ...]

    def __call__(self, method: str, node: Node) -> Placement | None:
        """Return the first answer, or None."""
        return next((p for partitioner in self.partitioners if (p := partitioner(method, node)) is not None), None)
