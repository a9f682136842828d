"""Every test draws the same random numbers in every run; ``TEST_SEED=7 pytest …`` draws others.

A bound on rounding holds for nearly all inputs, not for all: where two routers' logits tie to the last bit, both
choices of experts are right and their results are far apart. So a run must not fail by the luck of its draw, and
other draws are tried on purpose.
"""

import importlib.util
import os
import random

import pytest
from hypothesis import settings

SEED = os.environ.get("TEST_SEED")
HAS_TORCH = importlib.util.find_spec("torch") is not None

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("other draws", deadline=None)
settings.load_profile("repeatable" if SEED is None else "other draws")


@pytest.fixture(autouse=True)
def seed() -> int:
    """Seed Python's and torch's generators; a test that makes its own generator may start it from this number."""
    number = int(SEED or 0)
    random.seed(number)
    if HAS_TORCH:
        import torch

        torch.manual_seed(number)
    return number
