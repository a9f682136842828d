"""The scripts in tools/ that make checkpoints and programs."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from qwen35_moe.engine import Engine
from qwen35_moe.exporter import ExportOptions, export_checkpoint
from qwen35_moe.sampling import SamplingParameters
from qwen35_moe.testing import small_config

SCRIPT = Path(__file__).parent.parent / "tools" / "random_checkpoint.py"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "qwen3_5_moe", "text_config": small_config(), "architectures": None}))
    return path


def tokens_of(program: Path) -> list[int]:
    with Engine.load(program) as engine:
        return list(engine.generate([1, 2, 3], SamplingParameters(temperature=0), max_new_tokens=5, stop_ids=()))


def test_random_checkpoint_is_one_that_exports_and_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: Path
) -> None:
    run(monkeypatch, config, "--output", tmp_path / "checkpoint", "--layers", 3, "--shards", 2)
    document = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    assert document["text_config"]["layer_types"] == ["linear_attention"] * 3
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "program", ExportOptions(group_size=32, max_context=32))
    assert len(tokens_of(tmp_path / "program")) == 5


def test_random_program_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: Path) -> None:
    options = ("--program", "--device", "cpu", "--group-size", 32, "--max-context", 32)
    run(monkeypatch, config, "--output", tmp_path / "program", *options)
    assert len(set(tokens_of(tmp_path / "program"))) > 1


RESULTS_TABLE = runpy.run_path(str(SCRIPT.parent / "results_table.py"))
RESULT = {
    "command": "qwen35-moe bench",
    "date": "2026-01-02T03:04:05Z",
    "device": "Some Card",
    "versions": {"torch": "2.11"},
    "quant": "int4",
    "peak_nbytes": 18_500_000_000,
    "measurements": [
        {"name": "pp512", "kind": "pp", "tokens": 512, "context": 0, "tokens_per_s": 40000.4, "slowest": 39000.0,
         "fastest": 41000.0, "first_token_s": 0.0128, "nbytes_per_token": None, "bandwidth_share": None},
        {"name": "tg128@512", "kind": "tg", "tokens": 128, "context": 512, "tokens_per_s": 1000.0, "slowest": 999.0,
         "fastest": 1001.0, "first_token_s": None, "nbytes_per_token": 1_700_000_000, "bandwidth_share": 0.354},
    ],
}  # fmt: skip


def test_table_of_results() -> None:
    assert RESULTS_TABLE["table"]([RESULT]).splitlines()[2:] == [
        "| pp512 | **40,000** | 39,000 to 41,000 | 12.8 ms |  |  |",
        "| tg128@512 | **1,000** | 999 to 1,001 |  | 1,700 MB | 35% |",
        "",
        "Some Card, int4, peak memory 18.5 GB; 2026-01-02; torch 2.11;",
        "`qwen35-moe bench`",
    ]


def test_block_is_replaced_between_its_markers_only() -> None:
    begin, end = RESULTS_TABLE["BEGIN"], RESULTS_TABLE["END"]
    replace = RESULTS_TABLE["replace_block"]
    assert replace(f"a\n{begin}\nold\n{end}\nb", "new") == f"a\n{begin}\nnew\n{end}\nb"
    assert replace("no markers", "new") == "no markers"


def test_plot_is_drawn(tmp_path: Path) -> None:
    RESULTS_TABLE["plot"]([RESULT], tmp_path / "images" / "speed.svg")
    assert "<svg" in (tmp_path / "images" / "speed.svg").read_text()


def test_readmes_show_the_results_that_are_in_the_repository() -> None:
    assert RESULTS_TABLE["main"](["--check"]) == 0
