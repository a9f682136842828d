"""Attention over a slotted cache in plain torch, float32 arithmetic.

Shape suffixes: T rows, Q query heads, G key-value heads, P query heads of one key-value head, N keys, D head size.
"""

import torch

from cuda_kernels import int4
from cuda_kernels.attention.layout import HeadTransform, KeyValueCache, sizes_of
from cuda_kernels.checks import check

# Rows of prefill that are scored at once: bounds the memory of the scores.
BLOCK_ROWS = 256


def attention_decode(
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Write each row's key and value at its position of its slot, and attend to positions 0 … its own."""
    k_cache, v_cache = cache.keys, cache.values
    count, _, context, _ = k_cache.shape
    rows = []
    for position, slot in zip(positions.tolist(), slots.tolist(), strict=True):
        if slot != -1:
            check(0 <= slot < count, "attention_decode", "slots", f"-1 or 0 … {count - 1}", slot)
            check(0 <= position < context, "attention_decode", "positions", f"0 … {context - 1}", position)
        rows.append((position if slot != -1 else 0, slot))
    angles_TR = heads.rope[torch.tensor([at for at, _ in rows], dtype=torch.int64, device=heads.rope.device)]
    q_TQD, gate_TQD, k_TGD, v_TGD = split(qkv, heads, cache, angles_TR)
    out_TQD = torch.zeros_like(q_TQD)
    for row, (position, slot) in enumerate(rows):
        if slot == -1:
            continue
        k_cache[slot, :, position] = k_TGD[row]
        v_cache[slot, :, position] = v_TGD[row]
        keys, values = k_cache[slot, :, : position + 1], v_cache[slot, :, : position + 1]
        out_TQD[row] = attend(q_TQD[row : row + 1], keys, values, position)[0]
    gated = out_TQD * torch.sigmoid(gate_TQD)
    # A padded row is zero even where its gate is not a number.
    padding = (slots == -1).view(-1, 1, 1)
    return gated.masked_fill(padding, 0.0).flatten(1).to(qkv.dtype)


def attention_decode_int8(
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    positions: torch.Tensor,
    slots: torch.Tensor,
    group_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `attention_decode` quantized to int8 per group."""
    out = attention_decode(qkv, heads, cache, positions, slots)
    return int4.quantize_activation(out, group_size=group_size)


def attention_prefill(
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    start: torch.Tensor,
    slot: torch.Tensor,
) -> torch.Tensor:
    """Write keys and values at positions start … of the slot, and attend causally, earlier chunks included."""
    k_cache, v_cache, sizes = cache.keys, cache.values, sizes_of(qkv, heads, cache)
    rows, first, index = sizes.rows, int(start), int(slot)
    if index == -1 or rows == 0:
        return qkv.new_zeros(rows, sizes.width)
    check(0 <= index < sizes.slots, "attention_prefill", "slot", f"-1 or 0 … {sizes.slots - 1}", index)
    last = sizes.context - rows
    check(0 <= first <= last, "attention_prefill", "start", f"0 … {last}, to fit the cache", first)
    q_TQD, gate_TQD, k_TGD, v_TGD = split(qkv, heads, cache, heads.rope[first : first + rows])
    k_cache[index, :, first : first + rows] = k_TGD.transpose(0, 1)
    v_cache[index, :, first : first + rows] = v_TGD.transpose(0, 1)
    out_TQD = torch.empty_like(q_TQD)
    for row in range(0, rows, BLOCK_ROWS):
        block = q_TQD[row : row + BLOCK_ROWS]
        visible = first + row + block.shape[0]
        keys, values = k_cache[index, :, :visible], v_cache[index, :, :visible]
        out_TQD[row : row + BLOCK_ROWS] = attend(block, keys, values, first + row)
    return (out_TQD * torch.sigmoid(gate_TQD)).flatten(1).to(qkv.dtype)


def split(
    qkv: torch.Tensor, heads: HeadTransform, cache: KeyValueCache, angles_TR: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split a projection into queries, gates, keys and values, float32; norm and rotate queries and keys."""
    kv_heads, head_size = cache.keys.shape[1], cache.keys.shape[3]
    queries = qkv.shape[1] // head_size - 2 * kv_heads
    parts = qkv.to(torch.float32).unflatten(1, (-1, head_size))
    query_TQ2D, k_TGD, v_TGD = parts.split((queries, kv_heads, kv_heads), dim=1)
    q_TQD = _norm_rotate(query_TQ2D[:, 0::2], heads.q_norm, angles_TR, heads.eps)
    return q_TQD, query_TQ2D[:, 1::2], _norm_rotate(k_TGD, heads.k_norm, angles_TR, heads.eps), v_TGD


def attend(q_TQD: torch.Tensor, k_GND: torch.Tensor, v_GND: torch.Tensor, first: int) -> torch.Tensor:
    """Return softmax(q kᵀ / √D) v, (T, Q, D) float32, where row t sees keys 0 … first + t."""
    rows, queries, head_size = q_TQD.shape
    kv_heads, keys = k_GND.shape[:2]
    q_GTPD = q_TQD.unflatten(1, (kv_heads, queries // kv_heads)).transpose(0, 1)
    scores = q_GTPD.flatten(1, 2) @ k_GND.to(torch.float32).transpose(1, 2) * head_size**-0.5
    if rows > 1:
        hidden = (
            torch.arange(keys, device=q_TQD.device) > torch.arange(first, first + rows, device=q_TQD.device)[:, None]
        )
        scores = scores.unflatten(1, (rows, -1)).masked_fill(hidden[:, None], float("-inf")).flatten(1, 2)
    out = torch.softmax(scores, dim=-1) @ v_GND.to(torch.float32)
    return out.unflatten(1, (rows, -1)).transpose(0, 1).flatten(1, 2)


def _norm_rotate(x_THD: torch.Tensor, weight: torch.Tensor, angles_TR: torch.Tensor, eps: float) -> torch.Tensor:
    normed = x_THD * torch.rsqrt(x_THD.square().mean(-1, keepdim=True) + eps) * (weight.to(torch.float32) + 1.0)
    half = angles_TR.shape[1] // 2
    cos, sin = angles_TR[:, None, :half], angles_TR[:, None, half:]
    first, second, rest = normed.split((half, half, normed.shape[-1] - 2 * half), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
