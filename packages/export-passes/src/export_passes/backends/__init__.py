"""Backends of opaque regions: the interface, AOTInductor, and plain torch as a reference."""

import device_core

from export_passes.backends.aot_inductor import AotInductor, AotInductorRuntime
from export_passes.backends.backend import Backend, Region, export_region
from export_passes.backends.plain_torch import PlainTorch, PlainTorchRuntime

__all__ = ["AotInductor", "Backend", "PlainTorch", "Region", "export_region", "register"]


def register() -> None:
    """Register the runtime side of the backends, so that programs with their regions load; once more does nothing."""
    for backend in (AotInductorRuntime(), PlainTorchRuntime()):
        if device_core.BACKENDS.get(backend.name) is None:
            device_core.BACKENDS.register(backend)
