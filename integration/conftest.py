"""Set-up of the cross-package tests: one thread, registered operators, skipping of `gpu` tests without a device."""

import cuda_kernels
import pytest
import torch

torch.set_num_threads(1)
cuda_kernels.register()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)
