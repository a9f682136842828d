"""Fixtures of all tests: one thread, and programs that are lowered, written, loaded and run."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from device_core import Device, DeviceType, Module
from export_passes import BackendConfig, Lowered, lower

torch.set_num_threads(1)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[[Lowered], Module]]:
    """Write a lowered program to a folder and load it from there; closed after the test."""
    modules: list[Module] = []

    def load(lowered: Lowered) -> Module:
        folder = tmp_path / f"program-{len(modules)}"
        lowered.save(folder)
        modules.append(Module.load(folder))
        return modules[-1]

    yield load
    for module in modules:
        module.close()


@pytest.fixture
def compiled(load: Callable[[Lowered], Module]) -> Callable[..., Module]:
    """Export the forward of a module as the method `forward`, lower and load it."""

    def compiled(
        model: torch.nn.Module, args: tuple[Any, ...], config: BackendConfig | None = None, **export: Any
    ) -> Module:
        exported = torch.export.export(copy.deepcopy(model), args, **export)
        return load(lower({"forward": exported}, config))

    return compiled


@pytest.fixture
def device() -> Callable[[int], Device]:
    """Return the CUDA device of an index; nothing here needs it to be there."""
    return lambda index: Device(DeviceType.CUDA, index)
