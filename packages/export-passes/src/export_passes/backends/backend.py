"""`Backend`: what turns an opaque region of a graph into a payload."""

from dataclasses import dataclass
from typing import Protocol

import torch
from device_core.device import Device
from torch.fx import GraphModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of a method that becomes one delegate call.

    name: unique among the regions of all methods. module: takes tensors, returns a tuple of new tensors, may mutate
    its inputs. inputs: fake tensors, on the host. device: where the region will run.
    """

    name: str
    device: Device
    module: GraphModule
    inputs: tuple[torch.Tensor, ...]


class Backend(Protocol):
    """Compiles regions. The runtime finds what executes them under the same `id`."""

    @property
    def id(self) -> str:
        """Return the name under which the runtime knows the backend."""
        ...

    def compile(self, region: Region) -> bytes:
        """Return the payload of `region`."""
        ...
