"""Checkpoints with random weights of any configuration, streamed to disk, for tests."""

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qwen35_moe.checkpoint.reader import INDEX, SINGLE
from qwen35_moe.checkpoint.table import targets
from qwen35_moe.config import ModelConfig, parse_config

_DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}
_CHUNK_ELEMENTS = 1 << 24

Sizes = tuple[int, ...]


def small_config(**changes: Any) -> dict[str, Any]:
    """Return a `config.json` document of a model with four layers and odd sizes; `changes` replace its keys."""
    document: dict[str, Any] = {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "vocab_size": 301,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": 0,
        "dtype": "float32",
    }
    return {**document, **changes}


def full_config(*, layers: int = 40) -> dict[str, Any]:
    """Return the `config.json` document of the 35B-A3B model, with the first `layers` of its layers."""
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 10
    return small_config(
        vocab_size=248320,
        hidden_size=2048,
        num_hidden_layers=layers,
        layer_types=kinds[:layers],
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        max_position_embeddings=262144,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        eos_token_id=248044,
        dtype="bfloat16",
    )


def write_checkpoint(
    folder: Path,
    document: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    stacked: bool = True,
    prefix: str = "model.",
    shards: int = 1,
    seed: int = 0,
) -> Path:
    """Write `config.json` and random weights of sane scale to `folder`, about 64 MiB in memory at a time; return it.

    stacked: experts as the published checkpoints have them, or one tensor an expert.
    prefix: `model.` or `model.language_model.`.
    shards: number of files; more than one come with an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document, indent=2))
    sizes = _named_sizes(parse_config(document), stacked=stacked, prefix=prefix)
    generator = torch.Generator().manual_seed(seed)
    files = [SINGLE] if shards == 1 else [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    names = list(sizes)
    per_file = -(-len(names) // shards)
    weight_map: dict[str, str] = {}
    for position, file in enumerate(files):
        held = {name: sizes[name] for name in names[position * per_file : (position + 1) * per_file]}
        _write_file(folder / file, held, dtype, generator)
        weight_map |= dict.fromkeys(held, file)
    if shards > 1:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def _named_sizes(config: ModelConfig, *, stacked: bool, prefix: str) -> dict[str, Sizes]:
    marker = {f"layers.{i}.mlp.experts.gate_up_proj": "" for i in range(len(config.layer_types))} if stacked else {}
    sizes = {}
    for target in targets(config, marker):
        for source in (source for block in target.blocks for source in block.sources):
            sizes["lm_head.weight" if source.name == "lm_head.weight" else prefix + source.name] = source.sizes
    return sizes


def _write_file(path: Path, sizes: Mapping[str, Sizes], dtype: torch.dtype, generator: torch.Generator) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in sizes.items():
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in sizes.items():
            for values in random_values(name, shape, generator):
                file.write(values.to(dtype).view(torch.uint8).numpy().data)


def random_values(name: str, sizes: Sequence[int], generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield float32 values, flat and in pieces, of the scale that keeps activations near 1."""
    count = math.prod(sizes)
    for start in range(0, count, _CHUNK_ELEMENTS):
        values = torch.empty(min(_CHUNK_ELEMENTS, count - start))
        if name.endswith("A_log"):
            yield values.uniform_(0.01, 16.0, generator=generator).log_()
        elif name.endswith("linear_attn.norm.weight"):
            yield values.normal_(1.0, 0.1, generator=generator)
        elif len(sizes) == 1:
            yield values.normal_(0.0, 0.1, generator=generator)
        else:
            yield values.normal_(0.0, 1.0 if "embed" in name else sizes[-1] ** -0.5, generator=generator)
