"""Operators of the attention family: declarations and public functions."""

import torch

from cuda_kernels.attention import reference
from cuda_kernels.attention.sizes import Sizes, sizes_of
from cuda_kernels.checks import check, check_tensor, checked
from cuda_kernels.int4 import GROUP_SIZES
from cuda_kernels.library import Operator
from cuda_kernels.report import KernelCase


def _decode_sizes(
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
    sizes = sizes_of(operator, qkv, q_norm, k_norm, rope, k_cache, v_cache)
    check_tensor(operator, "positions", positions, shape=(sizes.rows,), dtype=torch.int64, device=qkv.device)
    check_tensor(operator, "slots", slots, shape=(sizes.rows,), dtype=torch.int64, device=qkv.device)
    return sizes


def _fake_decode(
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
    sizes = _decode_sizes("attention_decode", qkv, q_norm, k_norm, rope, k_cache, v_cache, positions, slots)
    return qkv.new_empty(sizes.rows, sizes.query_heads * sizes.head_size)


def _fake_decode_int8(
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
    name = "attention_decode_int8"
    sizes = _decode_sizes(name, qkv, q_norm, k_norm, rope, k_cache, v_cache, positions, slots)
    width = sizes.query_heads * sizes.head_size
    check(group_size in GROUP_SIZES, name, "group_size", f"one of {GROUP_SIZES}", group_size)
    check(width % group_size == 0, name, "group_size", f"a divisor of Hq·D = {width}", group_size)
    groups = width // group_size
    return (
        qkv.new_empty((sizes.rows, 2, width // 2), dtype=torch.int8),
        qkv.new_empty((sizes.rows, groups), dtype=torch.float32),
        qkv.new_empty((sizes.rows, groups), dtype=torch.float32),
    )


def _fake_prefill(
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
    name = "attention_prefill"
    sizes = sizes_of(name, qkv, q_norm, k_norm, rope, k_cache, v_cache)
    check_tensor(name, "start", start, shape=(1,), dtype=torch.int64, device=qkv.device)
    check_tensor(name, "slot", slot, shape=(1,), dtype=torch.int64, device=qkv.device)
    return qkv.new_empty(sizes.rows, sizes.query_heads * sizes.head_size)


_STATE = "Tensor qkv, Tensor q_norm, Tensor k_norm, Tensor rope, Tensor(a!) k_cache, Tensor(b!) v_cache"
_BATCH = "Tensor positions, Tensor slots, float eps"

COMPILE_CASES: tuple[KernelCase, ...] = ()

OPERATORS = (
    Operator(
        schema=f"attention_decode({_STATE}, {_BATCH}) -> Tensor",
        reference=checked(_fake_decode, reference.attention_decode),
        fake=_fake_decode,
    ),
    Operator(
        schema=f"attention_decode_int8({_STATE}, {_BATCH}, int group_size)"
        " -> (Tensor values, Tensor scale, Tensor group_sum)",
        reference=checked(_fake_decode_int8, reference.attention_decode_int8),
        fake=_fake_decode_int8,
    ),
    Operator(
        schema=f"attention_prefill({_STATE}, Tensor start, Tensor slot, float eps) -> Tensor",
        reference=checked(_fake_prefill, reference.attention_prefill),
        fake=_fake_prefill,
    ),
)
