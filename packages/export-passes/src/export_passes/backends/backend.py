"""`Backend`: what turns an opaque region of a graph into a payload, and the exported form that backends start from."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from device_core.device import Device
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from export_passes.errors import UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of a method that becomes one delegate call.

    name: unique among the regions of all methods. module: takes tensors and returns a tuple of new tensors, or of one
    empty tensor where the region only writes its inputs, those at the positions `mutated`. inputs: fake tensors, on the
    host. ranges: bounds of the symbols in their sizes. device: where the region will run; what it is given there is
    contiguous.
    """

    name: str
    device: Device
    module: GraphModule
    inputs: tuple[torch.Tensor, ...]
    mutated: tuple[int, ...]
    ranges: dict[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCall:
    """A compiled region: `payload` is known as `key`. results: how many tensors it fills, once they have memory."""

    backend: str
    name: str
    key: str
    payload: bytes
    results: int | None = None


class Backend(Protocol):
    """Compiles regions. What executes them is registered with the runtime under the same name."""

    @property
    def name(self) -> str:
        """Return the name under which the runtime knows the backend."""
        ...

    def compile(self, region: Region) -> bytes:
        """Return the payload of `region`."""
        ...


def export_region(region: Region) -> ExportedProgram:
    """Export a region on its own; sizes that are symbols stay so.

    Raises UnsupportedError where the size of an input is an expression of symbols and not a symbol itself.
    """
    dims: dict[str, Dim] = {}
    examples, shapes = [], []
    for tensor in region.inputs:
        shape: dict[int, Dim] = {}
        for i, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt):
                shape[i] = _dim(size, region, dims)
        hints = [size.node.hint if isinstance(size, torch.SymInt) else size for size in tensor.shape]
        examples.append(torch.zeros(hints, dtype=tensor.dtype, device=region.device.torch))
        shapes.append(shape)
    dynamic = tuple(shapes) if dims else None
    return torch.export.export(region.module, tuple(examples), dynamic_shapes=dynamic)


def _dim(size: torch.SymInt, region: Region, dims: dict[str, Dim]) -> Dim:
    symbol = size.node.expr
    if not symbol.is_Symbol:
        raise UnsupportedError(f"region {region.name}: an input of size {symbol}: expected a number or a symbol")
    name = f"d_{symbol}"
    if name not in dims:
        bounds = region.ranges[symbol]
        dims[name] = Dim(name, min=int(bounds.lower), max=int(bounds.upper))
    return dims[name]
