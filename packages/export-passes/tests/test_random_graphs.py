"""Random graphs on a host and two fake devices: what is compiled equals eager torch, and every device is respected."""

import random
from pathlib import Path

import pytest
from export_passes.testing import compare, random_program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random") / "program"


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_random_graphs_equal_eager(rng: random.Random, folder: Path) -> None:
    compare(random_program(rng), folder)
