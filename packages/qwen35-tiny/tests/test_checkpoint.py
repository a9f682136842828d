"""The files of the package, read with the standard library alone."""

import json
import math
import struct
from typing import Any

import pytest
from qwen35_tiny import checkpoint_path, held_out_path

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((checkpoint_path() / name).read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def tensors() -> dict[str, Any]:
    with (checkpoint_path() / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__")
    return header


def test_files_and_size() -> None:
    files = list(checkpoint_path().iterdir())
    assert {path.name for path in files} == FILES
    assert sum(path.stat().st_size for path in files) <= 16_000_000


def test_every_kind_of_layer() -> None:
    config = document("config.json")
    kinds = config["layer_types"]
    assert kinds.count("linear_attention") == 3 * kinds.count("full_attention") > 0
    assert config["linear_num_value_heads"] > config["linear_num_key_heads"]
    assert 0 < config["rope_parameters"]["partial_rotary_factor"] < 1
    assert config["num_experts"] >= 16
    assert config["shared_expert_intermediate_size"] > 0


def test_parameters(tensors: dict[str, Any]) -> None:
    assert {entry["dtype"] for entry in tensors.values()} == {"BF16"}
    assert 3_000_000 <= sum(math.prod(entry["shape"]) for entry in tensors.values()) <= 8_000_000


def test_every_int4_group_fits(tensors: dict[str, Any]) -> None:
    matrices = {name: entry["shape"] for name, entry in tensors.items() if len(entry["shape"]) == 2}
    assert not {name: shape for name, shape in matrices.items() if shape[-1] % 128}


def test_vocabulary() -> None:
    tokenizer = document("tokenizer.json")
    ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]
    assert sorted(ids) == list(range(document("config.json")["vocab_size"]))
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ends = document("generation_config.json")["eos_token_id"]
    assert sorted(ends) == sorted((added["<|im_end|>"], added["<|endoftext|>"]))


def test_held_out_texts() -> None:
    texts = held_out_path().read_text(encoding="utf-8").split("<|endoftext|>")
    assert texts.pop() == ""
    assert len(texts) == len(set(texts)) == 100
