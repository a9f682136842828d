"""Reading safetensors: agreement with the safetensors package, and every kind of broken folder."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from qwen35_moe.checkpoint.reader import INDEX, SINGLE, Checkpoint
from qwen35_moe.errors import CheckpointError
from safetensors.torch import load_file, save_file

MakeCheckpoint = Callable[..., Path]


def test_tensors_equal_those_of_the_safetensors_package(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(2, 4, 6).to(torch.bfloat16),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 4),
    }
    save_file(tensors, tmp_path / SINGLE)
    checkpoint = Checkpoint(tmp_path)
    assert set(checkpoint.entries) == set(tensors)
    for name, expected in load_file(tmp_path / SINGLE).items():
        assert torch.equal(checkpoint.read(name), expected)
    assert torch.equal(checkpoint.read("b", index=1), tensors["b"][1])


def test_shards_are_read_through_the_index(make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = Checkpoint(make_checkpoint(shards=3))
    assert len({entry.shard for entry in checkpoint.entries.values()}) == 3


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected model.safetensors or model.safetensors.index.json"):
        Checkpoint(tmp_path)


def test_missing_shards_are_named(make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint(shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"missing shard model-00002-of-00003.safetensors of 3"):
        Checkpoint(folder)


@pytest.mark.parametrize("nbytes", [-1, -1000, 100, 8, 4, 0], ids=lambda n: f"keep{n}")
def test_truncated_shard_is_named(make_checkpoint: MakeCheckpoint, nbytes: int) -> None:
    folder = make_checkpoint(shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:nbytes])
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.safetensors: truncated"):
        Checkpoint(folder)


def test_tensor_that_its_shard_lacks_is_named(make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint(shards=2)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.extra"] = "model-00001-of-00002.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks 1 tensors.*the first is model.extra"):
        Checkpoint(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'], ids=["broken", "list", "no-map", "number"])
def test_broken_index_is_refused(make_checkpoint: MakeCheckpoint, text: str) -> None:
    folder = make_checkpoint(shards=2)
    (folder / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match="weight_map"):
        Checkpoint(folder)


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b'{"a": 3}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}',
        b'{"a": {"dtype": "F32", "shape": [1]}}',
    ],
    ids=["text", "number", "size", "negative", "no-offsets"],
)
def test_broken_header_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(CheckpointError, match=r"model.safetensors: not a safetensors file"):
        Checkpoint(tmp_path)


def test_unknown_dtype_is_refused_when_read(tmp_path: Path) -> None:
    save_file({"ids": torch.arange(3)}, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match="tensor ids: expected dtype BF16, F32, F16, got I64"):
        Checkpoint(tmp_path).read("ids")
