"""Passes that turn torch.export graphs into device-aware programs with planned memory."""

from export_passes.config import BackendConfig, MethodConfig
from export_passes.errors import (
    ConfigError,
    ConstantConflictError,
    ExportError,
    PassError,
    PlanError,
    UnsupportedError,
)
from export_passes.pipeline import Lowered, lower
from export_passes.placement import DevicePartitioner, FirstOf, Partitioner, Placement

__all__ = [
    "BackendConfig",
    "ConfigError",
    "ConstantConflictError",
    "DevicePartitioner",
    "ExportError",
    "FirstOf",
    "Lowered",
    "MethodConfig",
    "Partitioner",
    "PassError",
    "Placement",
    "PlanError",
    "UnsupportedError",
    "lower",
]
