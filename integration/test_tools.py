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
