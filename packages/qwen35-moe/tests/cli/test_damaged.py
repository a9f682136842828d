"""Damaged checkpoints and programs: exit code 2 and one line on stderr that names the part."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Command, refused

Damage = Callable[[Path], None]


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
        pytest.param(raise_schema_version, ["99", "expected 2"], id="other schema version"),
        pytest.param(cut_constants, ["constants-00001-of-00001.safetensors"], id="shard cut short"),
        pytest.param(remove_constants, ["constants-00001-of-00001.safetensors"], id="missing shard"),
        pytest.param(remove_tokenizer, ["tokenizer.json"], id="no tokenizer"),
    ],
)
def test_damaged_program(command: Command, program_copy: Path, damage: Damage, words: list[str]) -> None:
    damage(program_copy)
    refused(command("run", program_copy, "--prompt", "x"), *words)
