"""The command line as processes: the tiny model by default, two at the same time, interrupted, killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from qwen35_moe.cli import main
from qwen35_tiny import checkpoint_path

COMMAND = (sys.executable, "-c", "from qwen35_moe.cli import main; raise SystemExit(main())")
STORY = ("run", "--prompt", "Once upon a time", "--temperature", "0", "--max-new-tokens", "24", "--device", "cpu")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("QWEN35_MOE_CACHE", str(cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def start(*arguments: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *arguments], **pipes, text=True, preexec_fn=_heed_interrupts)


def _heed_interrupts() -> None:
    """Undo what a shell does to what it runs in the background, these tests perhaps."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def programs(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if (path / "program.json").is_file()]


def test_two_that_start_together_share_one_export(cache: Path) -> None:
    """Runs first, on an empty cache."""
    first, second = start(*STORY), start(*STORY)
    (text, error), (same, _) = first.communicate(timeout=240), second.communicate(timeout=240)
    assert (first.returncode, second.returncode) == (0, 0), error
    assert text == same
    assert len(text) > 20
    assert len(programs(cache)) == 1
    assert not list(cache.glob(".*partial*"))


def test_tiny_model_is_the_default_and_its_export_is_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STORY, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == {"prompt_tokens": 4, "output_tokens": 24}
    assert document["finish_reason"] == "length"
    assert main([STORY[0], str(checkpoint_path()), *STORY[1:]]) == 0
    assert capsys.readouterr().out == document["text"] + "\n"
    assert len(programs(cache)) == 1


def test_interrupt_ends_with_130_and_no_traceback() -> None:
    process = start("run", "--prompt", "Once", "--max-new-tokens", "4000", "--device", "cpu", "--temperature", "0")
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "\ninterrupted\n")


def test_killed_export_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    output = tmp_path / "program"
    process = start("export", str(checkpoint_path()), "--output", str(output))
    deadline = time.monotonic() + 120
    while not (partial := list(tmp_path.glob(".program.partial-*"))):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert partial
    assert not output.exists()
    # What was left aside is not in the way.
    assert main(["export", str(checkpoint_path()), "--output", str(output)]) == 0
    assert main(["inspect", str(output)]) == 0


def test_program_folder_runs_without_the_checkpoint(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = programs(cache)
    moved = shutil.copytree(program, tmp_path / "moved")
    monkeypatch.setenv("QWEN35_MOE_CACHE", os.devnull)
    assert main([STORY[0], str(moved), *STORY[1:]]) == 0
    assert len(capsys.readouterr().out) > 20
