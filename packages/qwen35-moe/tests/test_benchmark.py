"""The benchmark: its rows and its floor; nothing here looks at a time."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device_core import read_program
from device_core.schema.types import ConstantSpec
from qwen35_moe.benchmark import Measurement, measure
from qwen35_moe.engine import Engine
from qwen35_moe.errors import PromptError
from qwen35_moe.exporter import ExportOptions
from qwen35_moe.random_program import write_random_program
from qwen35_moe.testing import small_config
from qwen35_moe.traffic import decode_traffic

NBYTES = {"uint8": 1, "bfloat16": 2, "float32": 4}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random") / "program"
    write_random_program(folder, small_config(), ExportOptions(group_size=32, max_context=40, slots=2))
    return folder


@pytest.fixture
def engine(program: Path) -> Iterator[Engine]:
    with Engine.load(program) as loaded:
        yield loaded


def test_rows_are_those_asked_for(engine: Engine) -> None:
    seen: list[Measurement] = []
    report = measure(engine, prompts=(3, 9), new_tokens=4, contexts=(0, 20), repeats=2, on_row=seen.append)
    assert [row.name for row in report.measurements] == ["pp3", "pp9", "tg4@1", "tg4@20"]
    assert tuple(seen) == report.measurements
    assert all(0 < row.slowest <= row.tokens_per_s <= row.fastest for row in seen)
    assert [row["name"] for row in report.document()["measurements"]] == [row.name for row in seen]


def test_lengths_that_do_not_fit_are_refused_with_both_numbers(engine: Engine) -> None:
    with pytest.raises(PromptError, match="bench: 41 tokens do not fit the context of 40"):
        measure(engine, prompts=(3,), new_tokens=21, contexts=(20,))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"prompts": (3, 0)}, "prompts: expected at least 1, got 0"),
        ({"new_tokens": 0}, "new_tokens: expected at least 1, got 0"),
        ({"repeats": 0}, "repeats: expected at least 1, got 0"),
        ({"prompts": (), "contexts": (0,), "new_tokens": 40}, "41 tokens do not fit the context of 40"),
    ],
    ids=["prompt", "new-tokens", "repeats", "context-0-is-one-token"],
)
def test_counts_are_refused_before_anything_runs(engine: Engine, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(PromptError, match=told):
        measure(engine, **wrong, on_row=lambda row: pytest.fail(row.name))


def constants(program: Path) -> dict[str, ConstantSpec]:
    return read_program(program).constants


def test_traffic_of_a_decode_step(program: Path) -> None:
    traffic = decode_traffic(read_program(program))
    # One attention layer with two key-value heads of 32, keys and values, bfloat16.
    assert traffic.cache_per_token == 2 * 2 * 32 * 2
    # Three delta-net layers: four heads of 16 x 16 float32, read and written, and of four entries of 48 channels, three
    # read and one written.
    assert traffic.state == 3 * (2 * 4 * 16 * 16 * 4 + 4 * 4 * 48 * 2)
    assert traffic.at(10) == traffic.weights + traffic.state + 10 * traffic.cache_per_token
    nbytes = {name: math.prod(spec.sizes) * NBYTES[spec.dtype] for name, spec in constants(program).items()}
    unread = sum(n // 2 for name, n in nbytes.items() if ".experts." in name)  # five of the ten rows of the table
    unread += nbytes["decoder.embedding"] * 300 // 301 + nbytes["decoder.rope"] * 39 // 40
    assert traffic.weights == sum(nbytes.values()) - unread
