"""The table of names: every weight made once, both expert layouts, and every kind of wrong checkpoint refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from qwen35_moe.checkpoint import Checkpoint, check_names, load_decoder, stream_weights
from qwen35_moe.checkpoint.reader import SINGLE
from qwen35_moe.config import read_config
from qwen35_moe.errors import CheckpointError, ExportError
from qwen35_moe.model import Decoder, Int4, ModelFormat
from safetensors.torch import load_file, save_file

MakeCheckpoint = Callable[..., Path]


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors of the single shard."""
    held = load_file(folder / SINGLE)
    for name, tensor in tensors.items():
        if tensor is None:
            del held[name]
        else:
            held[name] = tensor
    save_file(held, folder / SINGLE)


def check(folder: Path) -> None:
    check_names(Checkpoint(folder), read_config(folder))


@pytest.mark.parametrize("int4", [None, Int4(group_size=32)], ids=["dense", "int4"])
def test_every_weight_is_made_once(small_checkpoint: Path, int4: Int4 | None) -> None:
    config = read_config(small_checkpoint)
    form = ModelFormat(dtype=torch.float32, int4=int4)
    made = [
        (name, tensor.shape, tensor.dtype)
        for name, tensor in stream_weights(Checkpoint(small_checkpoint), config, form, context=16)
    ]
    decoder = Decoder(config, form, slots=1, context=16)
    assert sorted(made) == sorted((name, p.shape, p.dtype) for name, p in decoder.named_parameters())


@pytest.mark.parametrize(
    "options",
    [
        {"stacked": False},
        {"prefix": "model.language_model."},
        {"shards": 3},
        {"stacked": False, "prefix": "model.language_model.", "shards": 5},
    ],
    ids=["per-expert", "language-model", "sharded", "all"],
)
def test_layouts_hold_the_same_weights(
    small_checkpoint: Path, make_checkpoint: MakeCheckpoint, options: dict[str, object]
) -> None:
    other = make_checkpoint(**options)
    # The random numbers follow the order of the tensors, so the same values are written under the other layout.
    single = load_file(small_checkpoint / SINGLE)
    for shard in other.glob("*.safetensors"):
        held = load_file(shard)
        for name in held:
            plain = name.replace("model.language_model.", "model.")
            held[name] = single[plain] if plain in single else _one_expert(single, plain)
        save_file(held, shard)
    for (name, a), (_, b) in zip(
        load_decoder(small_checkpoint).named_parameters(), load_decoder(other).named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name


def _one_expert(single: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    layer, _, rest = name.partition(".experts.")
    expert, projection, _ = rest.split(".")
    if projection == "down_proj":
        return single[f"{layer}.experts.down_proj"][int(expert)].contiguous()
    gate, up = single[f"{layer}.experts.gate_up_proj"][int(expert)].chunk(2)
    return (gate if projection == "gate_proj" else up).contiguous()


def test_tied_head_is_the_embedding(make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint({"tie_word_embeddings": True})
    assert "lm_head.weight" not in Checkpoint(folder).entries
    decoder = load_decoder(folder)
    assert torch.equal(decoder.head.weight, decoder.embedding)


def test_shared_expert_is_padded_with_zeros(small_checkpoint: Path) -> None:
    decoder, single = load_decoder(small_checkpoint), load_file(small_checkpoint / SINGLE)
    experts = decoder.layers[0].moe.experts
    down = single["model.layers.0.mlp.shared_expert.down_proj.weight"]
    assert experts.down.shape == (10, 64, 32)
    assert torch.equal(torch.cat((experts.down[8], experts.down[9]), dim=1)[:, :48], down)
    assert not experts.down[9, :, 16:].any()
    assert not experts.gate_up[9, 16:32].any()
    assert not experts.gate_up[9, 48:].any()


def test_vision_and_multi_token_prediction_are_skipped(make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint()
    change(folder, **{"model.visual.blocks.0.weight": torch.ones(3), "mtp.layers.0.weight": torch.ones(3)})
    check(folder)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"model.layers.0.extra.weight": torch.ones(1)}, "1 unknown tensors, the first is model.layers.0.extra.weight"),
        ({"model.layers.4.input_layernorm.weight": torch.ones(64)}, "unknown.*layers.4.input_layernorm"),
        ({"model.norm.weight": None}, "1 missing tensors, the first is norm.weight"),
        ({"lm_head.weight": None}, "missing.*lm_head.weight"),
        (
            {"model.norm.weight": torch.ones(65)},
            r"model.safetensors: tensor model.norm.weight: expected shape \(64,\), got \(65,\)",
        ),
        ({"model.norm.weight": torch.ones(64, dtype=torch.float64)}, "expected dtype BF16 or F32, got F64"),
        ({"lm_head.weight_scale_inv": torch.ones(1)}, "lm_head.weight_scale_inv: this checkpoint is quantized"),
        ({"model.layers.0.linear_attn.A_log": torch.zeros(4).to(torch.float8_e4m3fn)}, "A_log.*got F8_E4M3"),
    ],
    ids=["unknown", "layer-too-many", "missing", "no-head", "shape", "float64", "scales", "float8"],
)  # fmt: skip
def test_wrong_checkpoint_is_refused(
    make_checkpoint: MakeCheckpoint, tensors: dict[str, torch.Tensor | None], message: str
) -> None:
    folder = make_checkpoint()
    change(folder, **tensors)
    with pytest.raises(CheckpointError, match=message):
        check(folder)


@pytest.mark.parametrize(
    ("group_size", "message"),
    [
        (128, "tensor layers.0.linear_attn.in_proj_qkv.weight: expected a multiple of group_size 128 columns, got 64"),
        (64, "tensor layers.0.mlp.experts.down_proj: expected a multiple of group_size 64 columns, got 32"),
        (48, r"group_size: expected one of \(32, 64, 128\), got 48"),
    ],
    ids=["G128", "G64", "G48"],
)
def test_group_size_that_does_not_divide_is_refused(small_checkpoint: Path, group_size: int, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        load_decoder(small_checkpoint, int4=Int4(group_size=group_size))


def test_weight_that_is_not_finite_is_named(make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint()
    change(folder, **{"lm_head.weight": torch.full((301, 64), torch.nan)})
    with pytest.raises(CheckpointError, match=r"tensor lm_head.weight: weight: expected finite values"):
        load_decoder(folder, int4=Int4(group_size=32))
