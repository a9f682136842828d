"""Operators of the attention family: declarations and public functions."""

from dataclasses import dataclass
from typing import Any

import torch

from cuda_kernels.attention import decode, prefill, reference
from cuda_kernels.attention.cases import COMPILE_CASES
from cuda_kernels.attention.fake import decode_sizes, fake_decode, fake_decode_int8, fake_prefill
from cuda_kernels.attention.sizes import Sizes, sizes_of
from cuda_kernels.checks import check, checked
from cuda_kernels.library import Operator

__all__ = [
    "COMPILE_CASES",
    "OPERATORS",
    "HeadTransform",
    "KeyValueCache",
    "attention_decode",
    "attention_decode_int8",
    "attention_prefill",
]


def _check_head_size(operator: str, sizes: Sizes) -> None:
    size = sizes.head_size
    check(
        16 <= size <= 256 and size & (size - 1) == 0, operator, "k_cache", "D a power of two, 16 … 256", f"D = {size}"
    )


def _cuda_decode(*args: Any, out: torch.Tensor) -> None:
    sizes = decode_sizes("attention_decode", *args[:8])
    _check_head_size("attention_decode", sizes)
    decode.attention_decode(*args, sizes=sizes, out=out)


def _cuda_decode_int8(*args: Any, values: torch.Tensor, scale: torch.Tensor, group_sum: torch.Tensor) -> None:
    sizes = decode_sizes("attention_decode_int8", *args[:8])
    _check_head_size("attention_decode_int8", sizes)
    decode.attention_decode(*args[:9], sizes=sizes, out=values, scale=scale, group_sum=group_sum, group_size=args[9])


def _cuda_prefill(*args: Any, out: torch.Tensor) -> None:
    sizes = sizes_of("attention_prefill", *args[:6])
    _check_head_size("attention_prefill", sizes)
    prefill.attention_prefill(*args, sizes=sizes, out=out)


_STATE = "Tensor qkv, Tensor q_norm, Tensor k_norm, Tensor rope, Tensor(a!) k_cache, Tensor(b!) v_cache"
_BATCH = "Tensor positions, Tensor slots, float eps"

OPERATORS = (
    Operator(
        schema=f"attention_decode({_STATE}, {_BATCH}) -> Tensor",
        reference=checked(fake_decode, reference.attention_decode),
        fake=fake_decode,
        cuda=_cuda_decode,
    ),
    Operator(
        schema=f"attention_decode_int8({_STATE}, {_BATCH}, int group_size)"
        " -> (Tensor values, Tensor scale, Tensor group_sum)",
        reference=checked(fake_decode_int8, reference.attention_decode_int8),
        fake=fake_decode_int8,
        cuda=_cuda_decode_int8,
    ),
    Operator(
        schema=f"attention_prefill({_STATE}, Tensor start, Tensor slot, float eps) -> Tensor",
        reference=checked(fake_prefill, reference.attention_prefill),
        fake=fake_prefill,
        cuda=_cuda_prefill,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTransform:
    """What happens to a query or key head first: RMS norm with unit offset, then partial rotary embedding.

    q_norm, k_norm: (D,) float32, bfloat16 or float16. rope: (L, R) float32, the cosines of R/2 angles, then the sines.
    """

    q_norm: torch.Tensor
    k_norm: torch.Tensor
    rope: torch.Tensor
    eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueCache:
    """keys (normed and rotated) and values, each (S, Hkv, L, D), contiguous, of the projection's dtype."""

    keys: torch.Tensor
    values: torch.Tensor


def attention_decode(
    qkv: torch.Tensor, heads: HeadTransform, cache: KeyValueCache, *, positions: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """Return sigmoid(gate) · softmax(q kᵀ / √D) v for one new token of each of B sequences, (B, Hq·D) in qkv's dtype.

    qkv: (B, Hq·2·D + 2·Hkv·D): per query head its query and then its gate, then keys, then values.
    positions, slots: (B,) int64 on qkv's device; the slots of a call differ, or are -1 for a padded row of zeros.

    Writes each row's key and value at its position of its slot in `cache`, and reads positions 0 … its own: what lies
    behind them may be anything. On the CPU a position or slot out of range raises; on CUDA it counts as padding.
    Raises ValueError on wrong shape, dtype, device or strides. Splits over keys: Dao et al., Flash-Decoding, 2023.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.attention_decode(
        qkv, heads.q_norm, heads.k_norm, heads.rope, cache.keys, cache.values, positions, slots, heads.eps
    )
    return result


def attention_decode_int8(
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    *,
    positions: torch.Tensor,
    slots: torch.Tensor,
    group_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `attention_decode` as int8 activations (values, scale, group_sum), laid out as `int4` says.

    group_size: 32, 64 or 128, a divisor of Hq·D.
    """
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.cuda_kernels.attention_decode_int8(
        qkv, heads.q_norm, heads.k_norm, heads.rope, cache.keys, cache.values, positions, slots, heads.eps, group_size
    )
    return result


def attention_prefill(
    qkv: torch.Tensor, heads: HeadTransform, cache: KeyValueCache, *, start: torch.Tensor, slot: torch.Tensor
) -> torch.Tensor:
    """Return the attention of T tokens of one sequence, (T, Hq·D): row t, at start + t, sees 0 … start + t.

    qkv: (T, …) as in `attention_decode`; start, slot: (1,) int64 on qkv's device, slot -1 for padding.

    Writes the keys and values of the rows first, so a prompt may be split at any position. Source: Dao,
    FlashAttention-2, 2023, arXiv:2307.08691.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.attention_prefill(
        qkv, heads.q_norm, heads.k_norm, heads.rope, cache.keys, cache.values, start, slot, heads.eps
    )
    return result
