"""Sampling parameters: ranges, and defaults from generation_config.json."""

import math
from typing import Any

import pytest
from qwen35_moe.errors import SamplingError
from qwen35_moe.sampling import SamplingParameters


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -2},
        {"top_k": 1.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"repetition_penalty": 0.0},
        {"seed": -1},
        {"seed": 2**63},
        {"seed": True},
    ],
    ids=str,
)
def test_value_outside_its_range_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(SamplingError, match=f"{next(iter(values))}: expected"):
        SamplingParameters(**values)


@pytest.mark.parametrize(
    "values",
    [{"temperature": 0}, {"top_k": 10**9}, {"top_k": -1}, {"top_p": 1}, {"seed": 0}, {"seed": 2**63 - 1}],
    ids=str,
)
def test_edge_of_a_range_is_accepted(values: dict[str, Any]) -> None:
    assert SamplingParameters(**values)


def test_defaults_of_a_generation_config() -> None:
    document = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [1], "min_p": None, "seed": 4}
    assert SamplingParameters.from_generation_config(document) == SamplingParameters(
        temperature=0.6, top_p=0.95, top_k=20
    )


def test_no_sampling_is_temperature_zero() -> None:
    assert SamplingParameters.from_generation_config({"do_sample": False, "temperature": 0.6}).temperature == 0
