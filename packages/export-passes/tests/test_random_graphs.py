"""Random graphs on several devices, fake and real: what is compiled equals eager torch, every device is respected."""

import gc
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_core import HOST, Device
from export_passes.testing import compare, compare_on_fakes, random_program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 2000
GPU_EXAMPLES = 500


def random_examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random") / "program"


@pytest.fixture
def flat_memory() -> Iterator[None]:
    """Fail where device memory is left allocated by what a test has run, over all its examples."""
    # cuBLAS keeps the workspace that its first product asks for.
    torch.mm(torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda"))
    gc.collect()  # so that nothing of earlier tests is freed in between
    before = torch.cuda.memory_allocated()
    yield
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.slow
@random_examples(EXAMPLES)
@given(rng=st.randoms(use_true_random=False))
def test_random_graphs_equal_eager(rng: random.Random, folder: Path) -> None:
    compare_on_fakes(random_program(rng), folder)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.slow
@random_examples(GPU_EXAMPLES)
@given(rng=st.randoms(use_true_random=False))
@pytest.mark.usefixtures("flat_memory")
def test_random_graphs_equal_eager_on_a_gpu(rng: random.Random, folder: Path) -> None:
    compare(random_program(rng, devices=(HOST, Device.parse("cuda:0"))), folder)
