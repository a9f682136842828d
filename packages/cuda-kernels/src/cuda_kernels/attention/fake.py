"""Checks of the attention operators, and their results without values, for tracing."""

import torch

from cuda_kernels.attention.sizes import Sizes, sizes_of
from cuda_kernels.checks import check, check_tensor
from cuda_kernels.int4 import GROUP_SIZES


def decode_sizes(
    operator: str,
    qkv: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    rope: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> Sizes:
    """Check the tensors of a decode step and return its sizes."""
    sizes = sizes_of(operator, qkv, q_norm, k_norm, rope, k_cache, v_cache)
    check_tensor(operator, "positions", positions, shape=(sizes.rows,), dtype=torch.int64, device=qkv.device)
    check_tensor(operator, "slots", slots, shape=(sizes.rows,), dtype=torch.int64, device=qkv.device)
    return sizes


def fake_decode(
    qkv: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    rope: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Return an empty result of `attention_decode`."""
    sizes = decode_sizes("attention_decode", qkv, q_norm, k_norm, rope, k_cache, v_cache, positions, slots)
    return qkv.new_empty(sizes.rows, sizes.query_heads * sizes.head_size)


def fake_decode_int8(
    qkv: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    rope: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    eps: float,
    group_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return an empty result of `attention_decode_int8`."""
    name = "attention_decode_int8"
    sizes = decode_sizes(name, qkv, q_norm, k_norm, rope, k_cache, v_cache, positions, slots)
    width = sizes.query_heads * sizes.head_size
    check(group_size in GROUP_SIZES, name, "group_size", f"one of {GROUP_SIZES}", group_size)
    check(width % group_size == 0, name, "group_size", f"a divisor of Hq·D = {width}", group_size)
    groups = width // group_size
    return (
        qkv.new_empty((sizes.rows, 2, width // 2), dtype=torch.int8),
        qkv.new_empty((sizes.rows, groups), dtype=torch.float32),
        qkv.new_empty((sizes.rows, groups), dtype=torch.float32),
    )


def fake_prefill(
    qkv: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    rope: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    start: torch.Tensor,
    slot: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Return an empty result of `attention_prefill`."""
    name = "attention_prefill"
    sizes = sizes_of(name, qkv, q_norm, k_norm, rope, k_cache, v_cache)
    check_tensor(name, "start", start, shape=(1,), dtype=torch.int64, device=qkv.device)
    check_tensor(name, "slot", slot, shape=(1,), dtype=torch.int64, device=qkv.device)
    return qkv.new_empty(sizes.rows, sizes.query_heads * sizes.head_size)
