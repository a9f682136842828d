"""The AOTInductor backend: a region is compiled by torch's inductor into a package that is loaded as it is."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import device_core
import torch
from device_core.device import Device
from device_core.runtime.backends import Argument

from export_passes.backends.backend import Region, export_region

NAME = "aot_inductor"


@dataclass(frozen=True, slots=True, kw_only=True)
class AotInductor:
    """Compiles regions with AOTInductor, on a machine that has the region's device and a C++ compiler.

    options: inductor's own, such as `{"max_autotune": True}`.
    """

    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the backend's name."""
        return NAME

    def compile(self, region: Region) -> bytes:
        """Return the package."""
        with tempfile.TemporaryDirectory(prefix="region-") as folder:
            path = Path(folder) / "region.pt2"
            torch._inductor.aoti_compile_and_package(
                export_region(region), package_path=str(path), inductor_configs=dict(self.options)
            )
            return path.read_bytes()


class AotInductorRuntime(device_core.Backend):
    """Runs the packages of `AotInductor`."""

    @property
    def name(self) -> str:
        """Return the backend's name."""
        return NAME

    def load(self, payload: bytes, device: Device) -> device_core.Region:
        """Return a region that runs on `device`."""
        # The package is unpacked when it is loaded; the file is not needed after.
        with tempfile.TemporaryDirectory(prefix="region-") as folder:
            path = Path(folder) / "region.pt2"
            path.write_bytes(payload)
            index = -1 if device.is_host else device.index
            return _Package(torch._inductor.aoti_load_package(str(path), device_index=index))


class _Package(device_core.Region):
    """A loaded package."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def execute(self, inputs: Sequence[Argument], outputs: Sequence[torch.Tensor]) -> None:
        """Run the package and copy its results. Its code takes strides as given, so inputs are made contiguous."""
        results = self._run(*(x.contiguous() if isinstance(x, torch.Tensor) else x for x in inputs))
        for output, result in zip(outputs, results, strict=bool(outputs)):
            output.copy_(result)

    def close(self) -> None:
        """Drop the package and what it allocated."""
        self._run = None
