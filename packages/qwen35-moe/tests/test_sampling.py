"""Sampling parameters: ranges, and defaults from generation_config.json."""

import math
from pathlib import Path
from typing import Any

import pytest
from qwen35_moe.errors import SamplingError
from qwen35_moe.sampling import SamplingParameters, read_defaults


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -2},
        {"temperature": 1e31},
        {"top_k": 1.5},
        {"top_k": 2**63},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"presence_penalty": -1e300},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-40},
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
    [
        {"temperature": 0},
        {"top_k": 10**9},
        {"top_k": -1},
        {"top_k": 2**63 - 1},
        {"temperature": 1e30},
        {"top_p": 1},
        {"seed": 0},
        {"seed": 2**63 - 1},
    ],
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


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not a JSON document"),
        (b"\xff{}", "not a JSON document"),
        (b"[]", "expected a JSON object, got list"),
        (b'{"temperature": "hot"}', "temperature: expected 0 to 1e30, got 'hot'"),
        (b'{"top_k": 50.5}', "top_k: expected an integer"),
        (b'{"temperature": NaN}', "temperature: expected 0 to 1e30, got nan"),
    ],
    ids=["empty", "not-utf8", "list", "text", "fraction", "nan"],
)
def test_damaged_generation_config_is_named(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(SamplingError, match=f"generation_config.json: {told}"):
        read_defaults(tmp_path)


def test_folder_without_generation_config_has_the_defaults(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == SamplingParameters()
