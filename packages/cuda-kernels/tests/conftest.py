"""Test set-up: Triton's interpreter where there is no GPU, one thread, skipping of `gpu` tests."""

import os
import sys

import torch

ON_GPU = torch.cuda.is_available()

# Must stand before triton is imported: its decorators read the variable when they run.
if not ON_GPU:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before these tests; run them in a process with TRITON_INTERPRET=1")
    os.environ["TRITON_INTERPRET"] = "1"

import cuda_kernels  # noqa: E402
import pytest  # noqa: E402  (after the environment is set)

torch.set_num_threads(1)
cuda_kernels.register()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not ON_GPU:
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)


@pytest.fixture
def device() -> torch.device:
    """Return the device that kernels run on: CUDA, or the CPU with Triton's interpreter."""
    return torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
