"""The table from the names of a Hugging Face checkpoint to the weights of the model.

H hidden, E experts, I expert width, V vocabulary, C channels of a convolution, W its width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from qwen35_moe.checkpoint.reader import Checkpoint
from qwen35_moe.config import ModelConfig
from qwen35_moe.errors import CheckpointError

Combine = Callable[[Sequence[torch.Tensor]], torch.Tensor]

_TEXT_PREFIXES = ("model.language_model.", "model.")
_SKIPPED_PREFIXES = ("model.visual.", "mtp.")
_QUANTIZED_SUFFIXES = (".weight_scale_inv", ".weight_scale", ".qweight", ".qzeros", ".weight_packed")
_FLOAT_DTYPES = ("BF16", "F32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One tensor of the checkpoint, or entry `index` of it; `sizes` are those of the whole tensor."""

    name: str
    sizes: tuple[int, ...]
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive entries of a target's first dimension: `combine` makes them of the `sources`."""

    sources: tuple[Source, ...]
    combine: Combine


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One weight of the model: the concatenation of its blocks.

    scales: the name of the scales where the weight is a matrix that int4 quantizes, else None.
    float32: kept in float32, whatever the model's dtype.
    """

    name: str
    sizes: tuple[int, ...]
    blocks: tuple[Block, ...]
    scales: str | None = None
    float32: bool = False


def text_names(checkpoint: Checkpoint) -> dict[str, str]:
    """Map `layers.0.…`, `norm.weight`, `embed_tokens.weight`, `lm_head.weight` to the names in the checkpoint."""
    names = {}
    for name in checkpoint.entries:
        if not name.startswith(_SKIPPED_PREFIXES):
            prefix = next((prefix for prefix in _TEXT_PREFIXES if name.startswith(prefix)), "")
            names[name.removeprefix(prefix)] = name
    return names


def check_names(checkpoint: Checkpoint, config: ModelConfig) -> None:
    """Raise CheckpointError on a quantized, unknown, missing or wrongly shaped tensor, before any is read."""
    names = text_names(checkpoint)
    if quantized := [names[name] for name in names if name.endswith(_QUANTIZED_SUFFIXES)]:
        raise CheckpointError(
            f"{checkpoint.folder}: {quantized[0]}: this checkpoint is quantized already; "
            "expected bfloat16 or float32 weights"
        )
    expected = {s.name: s.sizes for t in targets(config, names) for block in t.blocks for s in block.sources}
    known = {*expected, "lm_head.weight"} if config.tie_word_embeddings else expected
    if unknown := [names[name] for name in names if name not in known]:
        raise CheckpointError(f"{checkpoint.folder}: {len(unknown)} unknown tensors, the first is {unknown[0]}")
    if missing := [name for name in expected if name not in names]:
        raise CheckpointError(f"{checkpoint.folder}: {len(missing)} missing tensors, the first is {missing[0]}")
    for name, sizes in expected.items():
        entry = checkpoint.entries[names[name]]
        if entry.sizes != sizes:
            raise CheckpointError(
                f"{entry.shard.name}: tensor {names[name]}: expected shape {sizes}, got {entry.sizes}"
            )
        if entry.dtype not in _FLOAT_DTYPES:
            raise CheckpointError(
                f"{entry.shard.name}: tensor {names[name]}: expected dtype {' or '.join(_FLOAT_DTYPES)}, "
                f"got {entry.dtype}"
            )


def targets(config: ModelConfig, names: Mapping[str, str]) -> Iterator[Target]:
    """Yield every weight of the model but the rope table, in the order of the layers.

    names: the checkpoint's names without prefix; they decide between stacked and per-expert tensors.
    """
    H, V = config.hidden_size, config.vocab_size
    yield _rows("embedding", None, ("embed_tokens.weight", (V, H)))
    for i, kind in enumerate(config.layer_types):
        source, target = f"layers.{i}.", f"layers.{i}."
        yield _rows(f"{target}norm.weight", None, (f"{source}input_layernorm.weight", (H,)))
        if kind == "full_attention":
            yield from _attention(config, f"{source}self_attn.", f"{target}mixer.")
        else:
            yield from _delta_net(config, f"{source}linear_attn.", f"{target}mixer.")
        yield _rows(f"{target}moe.norm", None, (f"{source}post_attention_layernorm.weight", (H,)))
        router = (f"{source}mlp.gate.weight", (config.num_experts, H))
        yield _rows(f"{target}moe.router", None, router, (f"{source}mlp.shared_expert_gate.weight", (1, H)))
        yield from _experts(config, names, f"{source}mlp.", f"{target}moe.experts.")
    yield _rows("norm.weight", None, ("norm.weight", (H,)))
    head = "embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    yield _rows("head.weight", "head.scales", (head, (V, H)))


def _attention(config: ModelConfig, source: str, target: str) -> Iterator[Target]:
    H, D = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * D, config.num_key_value_heads * D
    yield _rows(
        f"{target}in_proj.weight",
        f"{target}in_proj.scales",
        (f"{source}q_proj.weight", (2 * queries, H)),
        (f"{source}k_proj.weight", (keys, H)),
        (f"{source}v_proj.weight", (keys, H)),
    )
    yield _rows(f"{target}q_norm", None, (f"{source}q_norm.weight", (D,)))
    yield _rows(f"{target}k_norm", None, (f"{source}k_norm.weight", (D,)))
    yield _rows(f"{target}out_proj.weight", f"{target}out_proj.scales", (f"{source}o_proj.weight", (H, queries)))


def _delta_net(config: ModelConfig, source: str, target: str) -> Iterator[Target]:
    H, C, W = config.hidden_size, config.conv_dim, config.linear_conv_kernel_dim
    values, heads = config.value_dim, config.linear_num_value_heads
    yield _rows(
        f"{target}in_proj.weight",
        f"{target}in_proj.scales",
        (f"{source}in_proj_qkv.weight", (C, H)),
        (f"{source}in_proj_z.weight", (values, H)),
        (f"{source}in_proj_b.weight", (heads, H)),
        (f"{source}in_proj_a.weight", (heads, H)),
    )
    conv = Source(name=f"{source}conv1d.weight", sizes=(C, 1, W))
    squeeze = Block(sources=(conv,), combine=lambda tensors: tensors[0].squeeze(1))
    yield Target(name=f"{target}conv_weight", sizes=(C, W), blocks=(squeeze,))
    yield _rows(f"{target}a_log", None, (f"{source}A_log", (heads,)), float32=True)
    yield _rows(f"{target}dt_bias", None, (f"{source}dt_bias", (heads,)), float32=True)
    yield _rows(f"{target}norm_weight", None, (f"{source}norm.weight", (config.linear_value_head_dim,)))
    yield _rows(f"{target}out_proj.weight", f"{target}out_proj.scales", (f"{source}out_proj.weight", (H, values)))


def _experts(config: ModelConfig, names: Mapping[str, str], source: str, target: str) -> Iterator[Target]:
    H, I, E = config.hidden_size, config.moe_intermediate_size, config.num_experts  # noqa: E741
    if f"{source}experts.gate_up_proj" in names:
        gate_up = [Source(name=f"{source}experts.gate_up_proj", sizes=(E, 2 * I, H), index=e) for e in range(E)]
        down = [Source(name=f"{source}experts.down_proj", sizes=(E, H, I), index=e) for e in range(E)]
        gate_up_blocks = [Block(sources=(s,), combine=_stack_rows) for s in gate_up]
        down_blocks = [Block(sources=(s,), combine=_stack_rows) for s in down]
    else:
        gate_up_blocks = [_gate_up(f"{source}experts.{e}.", I, H, _stack_rows) for e in range(E)]
        down_blocks = [
            Block(sources=(Source(name=f"{source}experts.{e}.down_proj.weight", sizes=(H, I)),), combine=_stack_rows)
            for e in range(E)
        ]
    shared, width = f"{source}shared_expert.", config.shared_expert_intermediate_size
    gate_up_blocks.append(_gate_up(shared, width, H, lambda tensors: _split_gate_up(tensors, I)))
    shared_down = Source(name=f"{shared}down_proj.weight", sizes=(H, width))
    down_blocks.append(Block(sources=(shared_down,), combine=lambda tensors: _split_down(tensors[0], I)))
    total = E + config.shared_experts
    yield Target(name=f"{target}gate_up", sizes=(total, 2 * I, H), blocks=tuple(gate_up_blocks),
                 scales=f"{target}gate_up_scales")  # fmt: skip
    yield Target(name=f"{target}down", sizes=(total, H, I), blocks=tuple(down_blocks), scales=f"{target}down_scales")


def _rows(target: str, scales: str | None, *parts: tuple[str, tuple[int, ...]], float32: bool = False) -> Target:
    """Return the target that stacks whole tensors along their first dimension."""
    blocks = tuple(
        Block(sources=(Source(name=name, sizes=sizes),), combine=lambda tensors: tensors[0]) for name, sizes in parts
    )
    rows = sum(sizes[0] for _, sizes in parts)
    return Target(name=target, sizes=(rows, *parts[0][1][1:]), blocks=blocks, scales=scales, float32=float32)


def _gate_up(source: str, width: int, hidden: int, combine: Combine) -> Block:
    names = (f"{source}gate_proj.weight", f"{source}up_proj.weight")
    return Block(sources=tuple(Source(name=name, sizes=(width, hidden)) for name in names), combine=combine)


def _stack_rows(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one expert: the rows of all tensors, with a leading dimension of 1."""
    return torch.cat(tuple(tensors)).unsqueeze(0)


def _split_gate_up(tensors: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Return gate and up of the shared expert as experts of `width`, `(m, 2·width, H)`, missing rows zero."""
    gate, up = (_pad(tensor, 0, width).unflatten(0, (-1, width)) for tensor in tensors)
    return torch.cat((gate, up), dim=1)


def _split_down(down: torch.Tensor, width: int) -> torch.Tensor:
    """Return down of the shared expert as experts of `width`, `(m, H, width)`, missing columns zero."""
    return _pad(down, 1, width).unflatten(1, (-1, width)).transpose(0, 1)


def _pad(tensor: torch.Tensor, dim: int, multiple: int) -> torch.Tensor:
    sizes = list(tensor.shape)
    sizes[dim] = -sizes[dim] % multiple
    return torch.cat((tensor, tensor.new_zeros(sizes)), dim=dim)
