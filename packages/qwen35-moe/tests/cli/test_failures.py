"""Every mistake of a user: exit code 2 and one line on stderr that names it."""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from qwen35_moe.cli.failures import exit_code_of

from .conftest import Command

Damage = Callable[[Path], None]


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, _, error = result
    assert code == 2
    told = [line for line in error.splitlines() if not line.startswith(("memory on", "loaded in"))]
    assert len(told) == 1, error
    assert told[0].startswith("error: ")
    for word in words:
        assert word in error


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
        pytest.param(["wrong"], ["wrong"], id="unknown command"),
        pytest.param(["export", "MISSING", "--output", "OUT"], ["MISSING"], id="export missing folder"),
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
        pytest.param(["bench", "PROGRAM", "-p", "1,two"], ["--prompts", "two"], id="bench of no number"),
        pytest.param(
            ["bench", "PROGRAM", "-p", "65", "-n", "4", "--context", "0"], ["65", "64"], id="bench past the context"
        ),
        pytest.param(
            ["bench", "PROGRAM", "-p", "", "-n", "2", "--context", "0", "--profile"], ["host"], id="profile on the host"
        ),
        pytest.param(["perplexity", "CHECKPOINT", "--text", "MISSING"], ["MISSING"], id="perplexity of no text"),
    ],
)
def test_mistake(
    command: Command, text_checkpoint: Path, text_program: Path, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    places = {"MISSING": tmp_path / "MISSING", "EMPTY": tmp_path / "EMPTY", "FILE": tmp_path / "FILE",
              "OUT": tmp_path / "OUT", "PROGRAM": text_program, "CHECKPOINT": text_checkpoint}  # fmt: skip
    places["EMPTY"].mkdir()
    places["FILE"].write_bytes(b"\xff\xfe broken")
    refused(command(*(places.get(argument, argument) for argument in arguments)), *words)
    assert not places["OUT"].exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, ["llama"], id="other architecture"
        ),
        pytest.param({"num_experts": None}, ["num_experts"], id="missing key"),
        pytest.param({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config"], id="quantized"),
    ],
)
def test_configuration(
    command: Command, make_checkpoint: Callable[..., Path], tmp_path: Path, changes: dict[str, object], words: list[str]
) -> None:
    folder = make_checkpoint()
    path = folder / "config.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    refused(command("export", folder, "--output", tmp_path / "OUT"), *words)


def cut_second_shard(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def remove_second_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def edit_header(folder: Path, edit: Callable[[dict[str, dict[str, object]]], None]) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def turn_embedding(folder: Path) -> None:
    def edit(header: dict[str, dict[str, object]]) -> None:
        entry = header["model.embed_tokens.weight"]
        entry["shape"] = [64, 301]

    edit_header(folder, edit)


def add_unknown(folder: Path) -> None:
    edit_header(folder, lambda header: header.update({"model.extra.weight": header["model.embed_tokens.weight"]}))
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.extra.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(remove_second_shard, ["model-00002-of-00002.safetensors"], id="missing shard"),
        pytest.param(cut_second_shard, ["model-00002-of-00002.safetensors"], id="truncated shard"),
        pytest.param(turn_embedding, ["embed_tokens.weight", "(301, 64)", "(64, 301)"], id="wrong shape"),
        pytest.param(add_unknown, ["model.extra.weight"], id="unknown tensor"),
    ],
)
def test_damaged_checkpoint(
    command: Command, make_checkpoint: Callable[..., Path], tmp_path: Path, damage: Damage, words: list[str]
) -> None:
    folder = make_checkpoint(shards=2)
    damage(folder)
    refused(command("export", folder, "--output", tmp_path / "OUT", "--group-size", "32"), *words)
    assert not (tmp_path / "OUT").exists()


def flip_byte(folder: Path) -> None:
    path = folder / "program.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def raise_schema_version(folder: Path) -> None:
    path = folder / "program.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))


def cut_constants(folder: Path) -> None:
    path = folder / "constants-00001-of-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def remove_constants(folder: Path) -> None:
    (folder / "constants-00001-of-00001.safetensors").unlink()


def remove_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(flip_byte, ["program.json"], id="flipped byte"),
        pytest.param(raise_schema_version, ["99", "1"], id="other schema version"),
        pytest.param(cut_constants, ["constants-00001-of-00001.safetensors"], id="shard cut short"),
        pytest.param(remove_constants, ["constants-00001-of-00001.safetensors"], id="missing shard"),
        pytest.param(remove_tokenizer, ["tokenizer.json"], id="no tokenizer"),
    ],
)
def test_damaged_program(command: Command, program_copy: Path, damage: Damage, words: list[str]) -> None:
    damage(program_copy)
    refused(command("run", program_copy, "--prompt", "x"), *words)


def test_tiny_model_not_installed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qwen35_tiny", None)
    refused(command("run", "--prompt", "x"), "pip install 'qwen35-moe[tiny]'")


def test_faults_of_our_own_are_not_told_as_mistakes() -> None:
    assert exit_code_of(AssertionError("broken invariant")) is None
