"""Operators of the attention family: checks, declarations and public functions."""

from collections.abc import Callable
from typing import Any

import torch

from cuda_kernels.attention import launch, reference
from cuda_kernels.attention.cases import COMPILE_CASES
from cuda_kernels.attention.layout import HeadTransform, KeyValueCache, Sizes, sizes_of
from cuda_kernels.checks import FLOATS, check, check_tensor, checked, new_int8_rows
from cuda_kernels.int4 import Int8Rows
from cuda_kernels.library import Operator

__all__ = ["COMPILE_CASES", "OPERATORS", "attention_decode", "attention_decode_int8", "attention_prefill"]


def _packed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(qkv, heads, cache, *indices, *rest)` with the flat arguments of an operator.

    These are the tensors of `_STATE`, two index tensors, eps, and the rest.
    """

    def run(*args: Any, **outputs: torch.Tensor) -> Any:
        qkv, q_norm, k_norm, rope, keys, values, first, second, eps, *rest = args
        heads = HeadTransform(q_norm=q_norm, k_norm=k_norm, rope=rope, eps=eps)
        return function(qkv, heads, KeyValueCache(keys=keys, values=values), first, second, *rest, **outputs)

    return run


def _check_state(operator: str, qkv: torch.Tensor, heads: HeadTransform, cache: KeyValueCache) -> Sizes:
    """Check the tensors that every operator takes and return their sizes."""
    check_tensor(operator, "qkv", qkv, shape=("T", "Hq·2·D + 2·Hkv·D"), dtype=FLOATS)
    device = qkv.device
    check_tensor(operator, "k_cache", cache.keys, shape=("S", "Hkv", "L", "D"), dtype=qkv.dtype, device=device)
    check_tensor(operator, "v_cache", cache.values, shape=tuple(cache.keys.shape), dtype=qkv.dtype, device=device)
    _, kv_heads, context, head_size = cache.keys.shape
    check(kv_heads > 0 and head_size > 0, operator, "k_cache", "Hkv and D at least 1", f"{kv_heads} and {head_size}")
    width = qkv.shape[1] - 2 * kv_heads * head_size
    check(
        width > 0 and width % (2 * head_size) == 0 and width // (2 * head_size) % kv_heads == 0,
        operator,
        "qkv",
        f"Hq·{2 * head_size} + {2 * kv_heads * head_size} columns, Hq a multiple of {kv_heads}",
        f"{qkv.shape[1]} columns",
    )
    check_tensor(operator, "q_norm", heads.q_norm, shape=(head_size,), dtype=FLOATS, device=device)
    check_tensor(operator, "k_norm", heads.k_norm, shape=(head_size,), dtype=FLOATS, device=device)
    check_tensor(operator, "rope", heads.rope, shape=(context, "R"), dtype=torch.float32, device=device)
    rotary = heads.rope.shape[1]
    check(rotary % 2 == 0 and rotary <= head_size, operator, "rope", f"an even R up to {head_size}", f"R = {rotary}")
    return sizes_of(qkv, heads, cache)


def _check_index(operator: str, argument: str, index: torch.Tensor, count: int, device: torch.device) -> None:
    check_tensor(operator, argument, index, shape=(count,), dtype=torch.int64, device=device)


def _check_decode(
    operator: str,
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> Sizes:
    sizes = _check_state(operator, qkv, heads, cache)
    _check_index(operator, "positions", positions, sizes.rows, qkv.device)
    _check_index(operator, "slots", slots, sizes.rows, qkv.device)
    return sizes


def _check_prefill(
    operator: str,
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    start: torch.Tensor,
    slot: torch.Tensor,
) -> Sizes:
    sizes = _check_state(operator, qkv, heads, cache)
    _check_index(operator, "start", start, 1, qkv.device)
    _check_index(operator, "slot", slot, 1, qkv.device)
    return sizes


def _fake_decode(qkv: torch.Tensor, *rest: Any) -> torch.Tensor:
    sizes = _check_decode("attention_decode", qkv, *rest)
    return qkv.new_empty(sizes.rows, sizes.width)


def _fake_decode_int8(qkv: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *tensors, group_size = rest
    sizes = _check_decode("attention_decode_int8", qkv, *tensors)
    return new_int8_rows("attention_decode_int8", qkv, sizes.width, group_size)


def _fake_prefill(qkv: torch.Tensor, *rest: Any) -> torch.Tensor:
    sizes = _check_prefill("attention_prefill", qkv, *rest)
    return qkv.new_empty(sizes.rows, sizes.width)


def _launched(operator: str, checks: Callable[..., Sizes], launch: Callable[..., None]) -> Callable[..., None]:
    """Return `launch` preceded by the checks, which the out form has not run, and by what the kernels ask for."""

    def run(*args: Any, **outputs: torch.Tensor) -> None:
        size = checks(operator, *args[:5]).head_size
        fits = 16 <= size <= 256 and size & (size - 1) == 0
        check(fits, operator, "k_cache", "D a power of two, 16 … 256, on a CUDA device", f"D = {size}")
        launch(*args, **outputs)

    return run


_STATE = "Tensor qkv, Tensor q_norm, Tensor k_norm, Tensor rope, Tensor(a!) k_cache, Tensor(b!) v_cache"
_BATCH = "Tensor positions, Tensor slots, float eps"

OPERATORS = (
    Operator(
        schema=f"attention_decode({_STATE}, {_BATCH}) -> Tensor",
        reference=_packed(checked(_fake_decode, reference.attention_decode)),
        fake=_packed(_fake_decode),
        cuda=_packed(_launched("attention_decode", _check_decode, launch.attention_decode)),
    ),
    Operator(
        schema=f"attention_decode_int8({_STATE}, {_BATCH}, int group_size)"
        " -> (Tensor values, Tensor scale, Tensor group_sum)",
        reference=_packed(checked(_fake_decode_int8, reference.attention_decode_int8)),
        fake=_packed(_fake_decode_int8),
        cuda=_packed(_launched("attention_decode_int8", _check_decode, launch.attention_decode_int8)),
    ),
    Operator(
        schema=f"attention_prefill({_STATE}, Tensor start, Tensor slot, float eps) -> Tensor",
        reference=_packed(checked(_fake_prefill, reference.attention_prefill)),
        fake=_packed(_fake_prefill),
        cuda=_packed(_launched("attention_prefill", _check_prefill, launch.attention_prefill)),
    ),
)


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
        qkv, *_tensors(heads, cache), positions, slots, heads.eps
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
) -> Int8Rows:
    """Return `attention_decode` quantized to int8 per group (see int4.py); arguments, state and errors as there.

    group_size: 32, 64 or 128, a divisor of Hq·D.
    """
    return Int8Rows(
        *torch.ops.cuda_kernels.attention_decode_int8(
            qkv, *_tensors(heads, cache), positions, slots, heads.eps, group_size
        )
    )


def attention_prefill(
    qkv: torch.Tensor, heads: HeadTransform, cache: KeyValueCache, *, start: torch.Tensor, slot: torch.Tensor
) -> torch.Tensor:
    """Return the attention of T tokens of one sequence, (T, Hq·D): row t, at start + t, sees 0 … start + t.

    qkv: (T, …) as in `attention_decode`; start, slot: (1,) int64 on qkv's device, slot -1 for padding.

    Writes the keys and values of the rows first, so a prompt may be split at any position. Rows that do not fit the
    cache raise on the CPU and count as padding on CUDA. Raises ValueError as `attention_decode`.
    Source: Dao, FlashAttention-2, 2023, arXiv:2307.08691.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.attention_prefill(
        qkv, *_tensors(heads, cache), start, slot, heads.eps
    )
    return result


def _tensors(heads: HeadTransform, cache: KeyValueCache) -> tuple[torch.Tensor, ...]:
    return heads.q_norm, heads.k_norm, heads.rope, cache.keys, cache.values
