"""Every mistake of a user: exit code 2 and one line on stderr that names it."""

import sys
from pathlib import Path

import pytest
from qwen35_moe.cli.failures import exit_code_of

from .conftest import Command, refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["run", "MISSING", "--prompt", "x"], ["MISSING", "no such folder"], id="run missing folder"),
        pytest.param(["run", "EMPTY", "--prompt", "x"], ["program.json", "config.json"], id="run empty folder"),
        pytest.param(["run", "FILE", "--prompt", "x"], ["expected a folder"], id="run a file"),
        pytest.param(["run", "PROGRAM"], ["--prompt", "none"], id="no prompt"),
        pytest.param(["run", "PROGRAM", "--prompt", "x", "--prompt-file", "FILE"], ["both"], id="two prompts"),
        pytest.param(["run", "PROGRAM", "--prompt-file", "MISSING"], ["MISSING"], id="missing prompt file"),
        pytest.param(["run", "PROGRAM", "--prompt-file", "FILE"], ["UTF-8"], id="prompt file not UTF-8"),
        pytest.param(["run", "PROGRAM", "--prompt", ""], ["empty prompt"], id="empty prompt"),
        pytest.param(["run", "PROGRAM", "--prompt", "x" * 65], ["65", "64"], id="prompt longer than the context"),
        pytest.param(["run", "PROGRAM", "--prompt", "x", "--max-new-tokens", "0"], ["at least 1", "0"], id="no tokens"),
        pytest.param(
            ["run", "PROGRAM", "--prompt", "x", "--temperature", "-1"], ["temperature", "-1"], id="temperature"
        ),
        pytest.param(["run", "PROGRAM", "--prompt", "x", "--top-p", "1.5"], ["top_p", "1.5"], id="top-p"),
        pytest.param(["run", "PROGRAM", "--prompt", "x", "--min-p", "nan"], ["min_p", "nan"], id="min-p not a number"),
        pytest.param(["run", "PROGRAM", "--prompt", "x", "--seed", "-1"], ["seed", "-1"], id="seed"),
        pytest.param(["run", "PROGRAM", "--prompt", "x", "--top-k", "many"], ["--top-k"], id="top-k not a number"),
        pytest.param(["run", "PROGRAM", "--prompt", "x", "--device", "gpu"], ["gpu"], id="unknown device"),
        pytest.param(
            ["run", "PROGRAM", "--prompt", "x", "--device", "cuda:0"], ["cuda:0"], id="program of another device"
        ),
        pytest.param(["run", "CHECKPOINT", "--prompt", "x", "--device", "cuda:99"], ["cuda:99"], id="no such GPU"),
        pytest.param(["run", "--unknown"], ["--unknown"], id="unknown option"),
        pytest.param(
            ["run", "PROGRAM", "--prompt", "x", "--temperature", "1e300"], ["temperature", "1e30"], id="not in float32"
        ),
        pytest.param(["run", "PROGRAM", "--prompt", "\udcff"], ["surrogate", "UTF-8"], id="prompt not UTF-8"),
        pytest.param(["wrong"], ["wrong"], id="unknown command"),
        pytest.param(["export", "MISSING", "--output", "OUT"], ["MISSING"], id="export missing folder"),
        pytest.param(["export", "FILE", "--output", "OUT"], ["expected a folder, got a file"], id="export a file"),
        pytest.param(["export", "PROGRAM", "--output", "OUT"], ["expected a checkpoint"], id="export a program"),
        pytest.param(["export", "CHECKPOINT", "--output", "OUT", "--slots", "65536"], ["slots", "65535"], id="slots"),
        pytest.param(["export", "EMPTY", "--output", "OUT"], ["config.json"], id="export of no checkpoint"),
        pytest.param(["export", "CHECKPOINT"], ["--output"], id="export without output"),
        pytest.param(
            ["export", "CHECKPOINT", "--output", "EMPTY", "--group-size", "32"], ["EMPTY"], id="output exists"
        ),
        pytest.param(
            ["export", "CHECKPOINT", "--output", "OUT", "--group-size", "128"], ["128", "64"], id="group size"
        ),
        pytest.param(["export", "CHECKPOINT", "--output", "OUT", "--max-context", "9999999"], ["4096"], id="context"),
        pytest.param(["export", "CHECKPOINT", "--output", "OUT", "--quant", "int3"], ["int3"], id="quantization"),
        pytest.param(["inspect", "MISSING"], ["MISSING"], id="inspect missing folder"),
        pytest.param(["inspect", "CHECKPOINT"], ["program.json"], id="inspect of no program"),
        pytest.param(
            ["inspect", "PROGRAM", "--memory-plan", "OUT", "--method", "encode"], ["encode"], id="no such method"
        ),
        pytest.param(["inspect", "FILE"], ["expected a folder, got a file"], id="inspect a file"),
        pytest.param(["inspect", "PROGRAM", "--method", "decode"], ["--memory-plan"], id="method without picture"),
        pytest.param(
            ["inspect", "PROGRAM", "--memory-plan", "/dev/full"], ["/dev/full: No space left"], id="disk full"
        ),
        pytest.param(["bench", "PROGRAM", "--json", "EMPTY"], ["expected a file", "EMPTY"], id="figures to a folder"),
        pytest.param(["bench", "PROGRAM", "--profile-plot", "MISSING/x.svg"], ["MISSING"], id="picture to nowhere"),
        pytest.param(["bench", "PROGRAM", "--repeats", "0"], ["repeats", "at least 1"], id="no repeats"),
        pytest.param(["bench", "PROGRAM", "-p", "1,two"], ["--prompts", "two"], id="bench of no number"),
        pytest.param(
            ["bench", "PROGRAM", "-p", "65", "-n", "4", "--context", "0"], ["65", "64"], id="bench past the context"
        ),
        pytest.param(
            ["bench", "PROGRAM", "-p", "", "-n", "2", "--context", "0", "--profile"], ["host"], id="profile on the host"
        ),
        pytest.param(["perplexity", "CHECKPOINT", "--text", "MISSING"], ["MISSING"], id="perplexity of no text"),
        pytest.param(["perplexity", "CHECKPOINT", "--text", "FILE"], ["FILE: expected UTF-8"], id="text not UTF-8"),
        pytest.param(["perplexity", "PROGRAM", "--text", "TEXT"], ["99", "64"], id="window longer than the context"),
        pytest.param(["perplexity", "PROGRAM", "--window", "1", "--text", "TEXT"], ["window", "1"], id="window"),
        pytest.param(
            ["perplexity", "PROGRAM", "--group-size", "32", "--text", "TEXT"], ["--group-size"], id="form of a program"
        ),
        pytest.param(
            ["perplexity", "CHECKPOINT", "--group-size", "7", "--quant", "int4", "--text", "TEXT"],
            ["group_size", "7"],
            id="unknown group size",
        ),
        pytest.param(
            ["perplexity", "CHECKPOINT", "--quant", "none", "--activations", "int8", "--text", "TEXT"],
            ["--activations"],
            id="activations of no quantization",
        ),
        pytest.param(
            ["perplexity", "CHECKPOINT", "--device", "gpu", "--text", "TEXT"], ["gpu"], id="perplexity device"
        ),
        pytest.param(
            ["perplexity", "CHECKPOINT", "--device", "cuda:99", "--text", "TEXT"], ["cuda:99"], id="perplexity no GPU"
        ),
    ],
)
def test_mistake(
    command: Command, text_checkpoint: Path, text_program: Path, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    names = ("MISSING", "MISSING/x.svg", "EMPTY", "FILE", "TEXT", "OUT")
    places = {**{name: tmp_path / name for name in names}, "PROGRAM": text_program, "CHECKPOINT": text_checkpoint}
    places["EMPTY"].mkdir()
    places["FILE"].write_bytes(b"\xff\xfe broken")
    places["TEXT"].write_text("x" * 99)
    refused(command(*(places.get(argument, argument) for argument in arguments)), *words)
    assert not places["OUT"].exists()


def test_tiny_model_not_installed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qwen35_tiny", None)
    refused(command("run", "--prompt", "x"), "pip install 'qwen35-moe[tiny]'")


def test_faults_of_our_own_are_not_told_as_mistakes() -> None:
    assert exit_code_of(AssertionError("broken invariant")) is None
