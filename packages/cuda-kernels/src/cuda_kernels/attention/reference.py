"""Attention over a slotted cache in plain torch, float32 arithmetic.

Shape suffixes: T rows, Q query heads, G key-value heads, P query heads of one key-value head, N keys, D head size.
"""

import torch

from cuda_kernels import int4

# Rows of prefill that are scored at once: bounds the memory of the scores.
BLOCK_ROWS = 256


def attention_decode(
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
    """Write each row's key and value at its position of its slot, and attend to positions 0 … its own."""
    context = k_cache.shape[2]
    rows = [
        _checked(position, slot, context, k_cache.shape[0]) if slot != -1 else (0, -1)
        for position, slot in zip(positions.tolist(), slots.tolist(), strict=True)
    ]
    angles_TR = rope[torch.tensor([position for position, _ in rows], dtype=torch.int64, device=rope.device)]
    q_TQD, gate_TQD, k_TGD, v_TGD = split(qkv, q_norm, k_norm, angles_TR, k_cache, eps)
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
    """Return `attention_decode` quantized to int8 per group."""
    out = attention_decode(qkv, q_norm, k_norm, rope, k_cache, v_cache, positions, slots, eps)
    return int4.quantize_activation(out, group_size=group_size)


def attention_prefill(
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
    """Write keys and values at positions start … of the slot, and attend causally, earlier chunks included."""
    rows, width = qkv.shape[0], qkv.shape[1] // 2 - k_cache.shape[1] * k_cache.shape[3]
    if int(slot) == -1 or rows == 0:
        return qkv.new_zeros(rows, width)
    first, index = _checked(int(start), int(slot), k_cache.shape[2] - rows + 1, k_cache.shape[0])
    q_TQD, gate_TQD, k_TGD, v_TGD = split(qkv, q_norm, k_norm, rope[first : first + rows], k_cache, eps)
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
    qkv: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    angles_TR: torch.Tensor,
    k_cache: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split a projection into queries, gates, keys and values, float32; norm and rotate queries and keys."""
    kv_heads, head_size = k_cache.shape[1], k_cache.shape[3]
    queries = qkv.shape[1] // head_size - 2 * kv_heads
    heads = qkv.to(torch.float32).unflatten(1, (-1, head_size))
    query_TQ2D, k_TGD, v_TGD = heads.split((queries, kv_heads, kv_heads), dim=1)
    q_TQD, gate_TQD = query_TQ2D[:, 0::2], query_TQ2D[:, 1::2]
    return _norm_rotate(q_TQD, q_norm, angles_TR, eps), gate_TQD, _norm_rotate(k_TGD, k_norm, angles_TR, eps), v_TGD


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


def _checked(position: int, slot: int, positions: int, slots: int) -> tuple[int, int]:
    if not 0 <= slot < slots:
        raise ValueError(f"attention: slot: expected -1 or 0 … {slots - 1}, got {slot}")
    if not 0 <= position < positions:
        raise ValueError(f"attention: position: expected 0 … {positions - 1} to fit the cache, got {position}")
    return position, slot
