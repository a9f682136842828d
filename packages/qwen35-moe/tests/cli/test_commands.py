"""The commands where nothing is wrong."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from qwen35_moe.cli import main
from qwen35_moe.cli.main import PACKAGES
from qwen35_moe.tokenizer import Tokenizer

from .conftest import Command

RUN = ("--prompt", "hello", "--max-new-tokens", "12")


def test_version_names_all_four_packages(command: Command) -> None:
    code, out, _ = command("--version")
    assert code == 0
    assert out.splitlines() == [f"{package} {version(package)}" for package in PACKAGES]
    assert len(PACKAGES) == 4


@pytest.mark.parametrize("name", ["run", "export", "inspect", "bench", "perplexity"])
def test_help_of_every_command(command: Command, name: str) -> None:
    code, out, _ = command(name, "--help")
    assert code == 0
    assert "--help" in out


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from qwen35_moe.cli import main; main(['--help']);"
        "sys.exit(bool({'torch', 'tokenizers', 'device_core', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_run_gives_the_same_text_streamed_and_as_json(command: Command, text_program: Path) -> None:
    _, streamed, _ = command("run", text_program, *RUN, "--seed", 0)
    code, out, err = command("run", text_program, *RUN, "--seed", 0, "--json", "--stats")
    assert code == 0
    document = json.loads(out)
    assert document["text"] + "\n" == streamed
    assert document["counts"] == {"prompt_tokens": 5, "output_tokens": len(document["token_ids"])}
    assert Tokenizer.from_folder(text_program).decode(document["token_ids"]) == document["text"]
    assert document["finish_reason"] in ("stop", "length")
    assert set(document["timings"]) > {"first_token_s", "output_tokens_per_s"}
    assert "memory on cpu" in err
    assert "tokens at" in err


def token_ids(command: Command, program: Path, *options: object) -> list[int]:
    code, out, _ = command("run", program, *RUN, *options, "--json")
    assert code == 0
    ids: list[int] = json.loads(out)["token_ids"]
    return ids


def test_seed_and_temperature(command: Command, text_program: Path) -> None:
    """Seed 0 is a seed; without one outputs differ; temperature 0 needs none."""
    assert token_ids(command, text_program, "--seed", 0) == token_ids(command, text_program, "--seed", 0)
    assert token_ids(command, text_program, "--seed", 0) != token_ids(command, text_program, "--seed", 1)
    assert token_ids(command, text_program) != token_ids(command, text_program)
    assert token_ids(command, text_program, "--temperature", 0) == token_ids(command, text_program, "--temperature", 0)


def test_defaults_are_those_of_generation_config(command: Command, text_program: Path, program_copy: Path) -> None:
    (program_copy / "generation_config.json").write_text(json.dumps({"do_sample": False}))
    greedy = token_ids(command, text_program, "--temperature", 0)
    assert token_ids(command, program_copy, "--seed", 5) == greedy
    assert token_ids(command, program_copy, "--seed", 5, "--temperature", 1) != greedy


def test_every_sampling_option_reaches_the_sampler(command: Command, text_program: Path) -> None:
    greedy = token_ids(command, text_program, "--temperature", 0)
    assert token_ids(command, text_program, "--temperature", 5, "--top-k", 1) == greedy
    assert token_ids(command, text_program, "--temperature", 5, "--top-k", 0, "--top-p", 1e-6) == greedy
    assert token_ids(command, text_program, "--temperature", 5, "--top-k", 0, "--min-p", 1) == greedy
    for penalty in ("--presence-penalty", "--frequency-penalty", "--repetition-penalty"):
        assert len(set(token_ids(command, text_program, "--temperature", 0, penalty, 1e9))) == 12


def test_prompt_file(command: Command, text_program: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("hello", encoding="utf-8")
    code, out, _ = command("run", text_program, "--prompt-file", path, "--temperature", 0, "--max-new-tokens", 12)
    assert code == 0
    assert out == command("run", text_program, *RUN, "--temperature", 0)[1]


def test_interrupt(command: Command, text_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qwen35_moe.generation.stream_text", interrupted)
    code, _, err = command("run", text_program, *RUN)
    assert (code, err) == (130, "\ninterrupted\n")


def test_inspect_json(command: Command, text_program: Path) -> None:
    code, out, _ = command("inspect", text_program, "--json")
    assert code == 0
    document = json.loads(out)
    methods = {method["name"]: method for method in document["methods"]}
    assert set(methods) == {"prefill", "decode", "sample"}
    (tokens, *_) = methods["prefill"]["inputs"]
    assert (tokens["dtype"], tokens["device"]) == ("int64", "cpu")
    assert tokens["sizes"] == [methods["prefill"]["symbols"][0]["name"]]
    (logits,) = methods["decode"]["outputs"]
    assert (logits["dtype"], logits["sizes"]) == ("float32", [2, 301])
    assert all({"nbytes", "device", "kind"} == set(buffer) for buffer in methods["decode"]["buffers"])
    operators = [each["operator"] for each in methods["decode"]["instructions"] if each["kind"] == "kernel"]
    assert "cuda_kernels::attention_decode.out" in operators
    assert document["constants"]["decoder.embedding"]["sizes"] == [301, 64]
    assert all(state["sizes"][0] == 2 for state in document["state"].values())


def test_inspect_text_and_memory_plan(command: Command, text_program: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    code, out, _ = command("inspect", text_program, "--memory-plan", picture)
    assert code == 0
    for word in (
        "decode: planned buffers",
        "decode: inputs",
        "cuda_kernels::attention_decode.out",
        "decoder.embedding",
    ):
        assert word in out
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_bench(command: Command, text_program: Path, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    code, out, err = command(
        "bench", text_program, "-p", "3,9", "-n", 4, "--context", "0,8", "--repeats", 1, "--json", path
    )
    assert code == 0
    assert "memory on cpu" in err
    rows = json.loads(path.read_text())["measurements"]
    assert [row["name"] for row in rows] == ["pp3", "pp9", "tg4@1", "tg4@8"]
    assert all(row["name"] in out for row in rows)


def test_perplexity_of_a_checkpoint_and_of_its_program(
    command: Command, text_checkpoint: Path, text_program: Path, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    second = "another text, longer than a window of tokens"
    path.write_text(f"one text<|endoftext|>{second}", encoding="utf-8")
    shared = ("--text", path, "--window", 24, "--json")
    _, out, _ = command("perplexity", text_checkpoint, *shared, "--quant", "int4", "--group-size", "32")
    forms = json.loads(out)["forms"]
    assert list(forms) == ["int4 group 32, float activations", "int4 group 32, int8 activations"]
    assert all(figures["tokens"] == 9 + len(second) for figures in forms.values())
    _, out, _ = command("perplexity", text_program, *shared)
    (program,) = json.loads(out)["forms"].values()
    assert program["loss"] == pytest.approx(forms["int4 group 32, float activations"]["loss"], rel=1e-4)


def test_perplexity_takes_the_group_sizes_that_divide_every_matrix(
    command: Command, text_checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a text", encoding="utf-8")
    code, out, _ = command("perplexity", text_checkpoint, "--text", path, "--json")
    assert code == 0
    forms = json.loads(out)["forms"]
    assert list(forms) == ["unquantized", *(f"int4 group 32, {kind} activations" for kind in ("float", "int8"))]
    assert all(figures["tokens"] == 6 for figures in forms.values())


def test_no_command_shows_the_help(command: Command) -> None:
    code, out, _ = command()
    assert code == 0
    assert out == command("--help")[1]


@pytest.mark.parametrize(
    "setup",
    ["sys.stdout = None", "sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding='ascii')"],
    ids=["no-output", "ascii-output"],
)
def test_text_goes_to_any_output(text_program: Path, setup: str) -> None:
    script = (
        f"import io, sys; {setup}; from qwen35_moe.cli import main;"
        f"raise SystemExit(main(['run', {str(text_program)!r}, '--prompt', 'x', '--seed', '0', '--temperature', '5']))"
    )
    process = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE)
    assert (process.returncode, process.stderr) == (0, b"")


def test_closed_pipe_is_quiet(text_program: Path) -> None:
    script = f"from qwen35_moe.cli import main; raise SystemExit(main(['inspect', {str(text_program)!r}, '--json']))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
    assert main(["--version"]) == 0
