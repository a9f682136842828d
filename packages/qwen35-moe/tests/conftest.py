"""Test set-up: one thread, registered operators, and small checkpoints made once a session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_kernels
import pytest
import torch
from qwen35_moe.exporter import ExportOptions, export_checkpoint
from qwen35_moe.testing import small_config, write_checkpoint

torch.set_num_threads(1)
cuda_kernels.register()


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small", small_config())


SMALL_OPTIONS = ExportOptions(group_size=32, max_context=48, chunk=16, slots=2)


@pytest.fixture(scope="session")
def small_program(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program folder of `small_checkpoint`: int4, two slots, context 48, chunk 16."""
    folder = tmp_path_factory.mktemp("program") / "small"
    export_checkpoint(small_checkpoint, folder, SMALL_OPTIONS)
    return folder


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Write a checkpoint with changed configuration keys into the test's folder."""

    def make(changes: dict[str, Any] | None = None, **options: Any) -> Path:
        return write_checkpoint(tmp_path / "checkpoint", small_config(**(changes or {})), **options)

    return make
