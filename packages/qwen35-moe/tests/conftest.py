"""Test set-up: one thread, registered operators, and small checkpoints made once a session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_kernels
import pytest
import torch
from qwen35_moe.testing import small_config, write_checkpoint

torch.set_num_threads(1)
cuda_kernels.register()


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small", small_config())


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Write a checkpoint with changed configuration keys into the test's folder."""

    def make(changes: dict[str, Any] | None = None, **options: Any) -> Path:
        return write_checkpoint(tmp_path / "checkpoint", small_config(**(changes or {})), **options)

    return make
