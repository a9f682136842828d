"""The plain-torch backend: a region is run by torch as it was exported. A reference for the others, and for tests."""

import io
from collections.abc import Sequence

import device_core
import torch
from device_core.device import Device
from device_core.runtime.backends import Argument

from export_passes.backends.backend import Region, export_region

NAME = "plain_torch"


class PlainTorch:
    """Keeps the exported form of a region as its payload."""

    @property
    def name(self) -> str:
        """Return the backend's name."""
        return NAME

    def compile(self, region: Region) -> bytes:
        """Return the region in torch's own archive format."""
        stream = io.BytesIO()
        torch.export.save(export_region(region), stream)
        return stream.getvalue()


class PlainTorchRuntime(device_core.Backend):
    """Runs the payloads of `PlainTorch`."""

    @property
    def name(self) -> str:
        """Return the backend's name."""
        return NAME

    def load(self, payload: bytes, device: Device) -> device_core.Region:
        """Return a region that runs where its tensors are."""
        return _Loaded(torch.export.load(io.BytesIO(payload)).module())


class _Loaded(device_core.Region):
    """A region as a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def execute(self, inputs: Sequence[Argument], outputs: Sequence[torch.Tensor]) -> None:
        """Run the module and copy its results."""
        with torch.no_grad():
            for output, result in zip(outputs, self._module(*inputs), strict=bool(outputs)):
                output.copy_(result)

    def close(self) -> None:
        """Do nothing: the module owns no memory of a device."""
