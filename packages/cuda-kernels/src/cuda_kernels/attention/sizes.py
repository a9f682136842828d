"""The sizes of an attention call, read off its tensors and checked."""

from dataclasses import dataclass

import torch

from cuda_kernels.checks import check, check_tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """T rows, Hq query heads, Hkv key-value heads, D, L, S, and R rotated elements of a head."""

    rows: int
    query_heads: int
    kv_heads: int
    head_size: int
    context: int
    slots: int
    rotary: int


def sizes_of(
    operator: str,
    qkv: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    rope: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> Sizes:
    """Check the tensors that every attention operator takes; raise ValueError or return their sizes."""
    check_tensor(operator, "qkv", qkv, shape=("T", "Hq·2·D + 2·Hkv·D"), dtype=FLOATS)
    device = qkv.device
    check_tensor(operator, "k_cache", k_cache, shape=("S", "Hkv", "L", "D"), dtype=qkv.dtype, device=device)
    check_tensor(operator, "v_cache", v_cache, shape=tuple(k_cache.shape), dtype=qkv.dtype, device=device)
    slots, kv_heads, context, head_size = k_cache.shape
    query_width = qkv.shape[1] - 2 * kv_heads * head_size
    query_heads = query_width // (2 * head_size)
    fits = query_width > 0 and query_width % (2 * head_size) == 0 and query_heads % kv_heads == 0
    check(
        fits,
        operator,
        "qkv",
        f"Hq·{2 * head_size} + {2 * kv_heads * head_size} columns, Hq a multiple of {kv_heads}",
        f"{qkv.shape[1]} columns",
    )
    check_tensor(operator, "q_norm", q_norm, shape=(head_size,), dtype=FLOATS, device=device)
    check_tensor(operator, "k_norm", k_norm, shape=(head_size,), dtype=FLOATS, device=device)
    check_tensor(operator, "rope", rope, shape=(context, "R"), dtype=torch.float32, device=device)
    rotary = rope.shape[1]
    check(rotary % 2 == 0 and rotary <= head_size, operator, "rope", f"an even R up to {head_size}", f"R = {rotary}")
    return Sizes(
        rows=qkv.shape[0],
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_size=head_size,
        context=context,
        slots=slots,
        rotary=rotary,
    )
