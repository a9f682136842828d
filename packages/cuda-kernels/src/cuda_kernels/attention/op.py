"""Operators of the attention family: declarations and public functions."""

from typing import Any

import torch

from cuda_kernels.attention import decode, prefill, reference
from cuda_kernels.attention.cases import COMPILE_CASES
from cuda_kernels.attention.sizes import Sizes, sizes_of
from cuda_kernels.checks import check, check_tensor, checked
from cuda_kernels.int4 import GROUP_SIZES
from cuda_kernels.library import Operator


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


def _check_head_size(operator: str, sizes: Sizes) -> None:
    size = sizes.head_size
    check(
        16 <= size <= 256 and size & (size - 1) == 0, operator, "k_cache", "D a power of two, 16 … 256", f"D = {size}"
    )


def _cuda_decode(*args: Any, out: torch.Tensor) -> None:
    sizes = _decode_sizes("attention_decode", *args[:8])
    _check_head_size("attention_decode", sizes)
    decode.attention_decode(*args, sizes=sizes, out=out)


def _cuda_decode_int8(*args: Any, values: torch.Tensor, scale: torch.Tensor, group_sum: torch.Tensor) -> None:
    sizes = _decode_sizes("attention_decode_int8", *args[:8])
    _check_head_size("attention_decode_int8", sizes)
    outputs = {"out": values, "scale": scale, "group_sum": group_sum}
    decode.attention_decode(*args[:9], sizes=sizes, group_size=args[9], **outputs)


def _cuda_prefill(*args: Any, out: torch.Tensor) -> None:
    sizes = sizes_of("attention_prefill", *args[:6])
    _check_head_size("attention_prefill", sizes)
    prefill.attention_prefill(*args, sizes=sizes, out=out)


_STATE = "Tensor qkv, Tensor q_norm, Tensor k_norm, Tensor rope, Tensor(a!) k_cache, Tensor(b!) v_cache"
_BATCH = "Tensor positions, Tensor slots, float eps"

OPERATORS = (
    Operator(
        schema=f"attention_decode({_STATE}, {_BATCH}) -> Tensor",
        reference=checked(_fake_decode, reference.attention_decode),
        fake=_fake_decode,
        cuda=_cuda_decode,
    ),
    Operator(
        schema=f"attention_decode_int8({_STATE}, {_BATCH}, int group_size)"
        " -> (Tensor values, Tensor scale, Tensor group_sum)",
        reference=checked(_fake_decode_int8, reference.attention_decode_int8),
        fake=_fake_decode_int8,
        cuda=_cuda_decode_int8,
    ),
    Operator(
        schema=f"attention_prefill({_STATE}, Tensor start, Tensor slot, float eps) -> Tensor",
        reference=checked(_fake_prefill, reference.attention_prefill),
        fake=_fake_prefill,
        cuda=_cuda_prefill,
    ),
)

__all__ = ["COMPILE_CASES", "OPERATORS"]
