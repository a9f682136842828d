"""Decode attention: the keys of a row split over programs, each with its running maximum, then combined.

The grid is static (it follows the capacity of the cache), the work is not: the live keys of a row, known on the device
alone, are dealt out evenly, and a program without keys returns. Two kernels, so that what the first reads before its
wait (keys and values of earlier steps) was written at least two kernels back, however steps follow one another.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl

from cuda_kernels.attention.rotary import load_heads, load_rotation, rotate
from cuda_kernels.primitives import prefetch_share, store_quantized, wait_for_previous

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _row_of_cache(p_positions, p_slots, row, slots, context):
    """Return (position, slot, whether the row is a real one); a padded row counts as position 0 of slot 0."""
    position = tl.load(p_positions + row, cache_modifier=".cg")
    slot = tl.load(p_slots + row, cache_modifier=".cg")
    valid = (slot >= 0) & (slot < slots) & (position >= 0) & (position < context)
    return tl.where(valid, position, 0).to(tl.int32), tl.where(valid, slot, 0), valid


@triton.jit
def _keys_per_split(position, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    return tl.cdiv(tl.cdiv(position, SPLITS), BLOCK_N) * BLOCK_N


@triton.jit
def _attend_tile(q, k, v, acc, top, total, m_n):
    """Fold a tile of keys into the running sum of values, maximum and sum; at least one key of it is visible."""
    s = tl.where(m_n[None, :], tl.dot(q, tl.trans(k), input_precision="ieee"), float("-inf"))
    higher = tl.maximum(top, tl.max(s, 1))
    p = tl.exp2(s - higher[:, None])
    shrink = tl.exp2(top - higher)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, higher, total * shrink + tl.sum(p, 1)


@triton.jit
def attention_split_kernel(
    p_qkv,
    p_q_norm,
    p_k_norm,
    p_rope,
    p_k_cache,
    p_v_cache,
    p_positions,
    p_slots,
    p_acc,
    p_max,
    p_sum,
    eps,
    slots,
    context,
    Q: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    ROTARY: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attend with the query heads of one key-value head to one split of the keys; program (split, head, row).

    Leaves the unnormalized sum of values in p_acc (B, SPLITS, Q, D), its maximum (of log2) and sum in p_max and p_sum
    (B, SPLITS, Q). Split 0 also writes the row's own key and value to the cache and starts its sums with them.
    """
    split, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    P: tl.constexpr = Q // G
    WIDTH: tl.constexpr = (2 * Q + 2 * G) * D
    position, slot, valid = _row_of_cache(p_positions, p_slots, row, slots, context)
    chunk = _keys_per_split(position, SPLITS, BLOCK_N)
    begin = split * chunk
    end = tl.minimum(begin + chunk, position)
    if (valid == 0) | ((begin >= end) & (split > 0)):
        wait_for_previous(PDL)
        return

    o_d, o_n, o_h = tl.arange(0, D), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_H)
    base = (slot * G + head) * context * D
    o_tile = base + o_n.to(tl.int64)[:, None] * D + o_d[None, :]
    m_n = begin + o_n < end
    # Earlier steps or the prompt wrote these rows; the lookup of embeddings, which starts late, lies in between.
    if PDL:
        # In registers the values would wait for the keys, which go to shared memory first.
        nbytes = tl.minimum(end - begin, 2 * BLOCK_N) * (D * p_v_cache.dtype.element_ty.primitive_bitwidth // 8)
        prefetch_share((p_v_cache + base + begin * D).to(tl.pointer_type(tl.uint8)), nbytes, 0, 1)
    k = tl.load(p_k_cache + o_tile + begin * D, mask=m_n[:, None], other=0.0)
    one, always = tl.zeros((1, 1), tl.int32), tl.full((1, 1), 1, tl.int1)
    q_direct, q_crossed = load_rotation(p_q_norm, p_rope + position * ROTARY + one, always, D, ROTARY)
    k_direct, k_crossed = load_rotation(p_k_norm, p_rope + position * ROTARY + one, always, D, ROTARY)
    wait_for_previous(PDL)

    p_row = p_qkv + row * WIDTH
    m_h, m_own = o_h < P, always & (split == 0)
    q, q_partner = load_heads(p_row + ((head * P + o_h) * 2 * D)[:, None], m_h[:, None], D, ROTARY)
    key, key_partner = load_heads(p_row + (2 * Q + head) * D + one, m_own, D, ROTARY)
    value = tl.load(p_row + (2 * Q + G + head) * D + o_d[None, :], mask=m_own, other=0.0)
    v = tl.load(p_v_cache + o_tile + begin * D, mask=m_n[:, None], other=0.0)
    key = rotate(key, key_partner, k_direct, k_crossed, eps, D).to(k.dtype)
    o_own = base + position.to(tl.int64) * D + o_d[None, :]
    tl.store(p_k_cache + o_own, key, mask=m_own)
    tl.store(p_v_cache + o_own, value, mask=m_own)
    q = rotate(q, q_partner, q_direct, q_crossed, eps, D)
    q = (q * (_LOG2_E / tl.sqrt(D * 1.0))).to(k.dtype)

    top = tl.where(split == 0, tl.sum(q.to(tl.float32) * key.to(tl.float32), 1), float("-inf"))
    total = tl.where(split == 0, 1.0, 0.0) + tl.zeros((BLOCK_H,), tl.float32)
    acc = value.to(tl.float32) + tl.zeros((BLOCK_H, D), tl.float32)
    if begin < end:
        acc, top, total = _attend_tile(q, k, v, acc, top, total, m_n)
        for first in tl.range(begin + BLOCK_N, end, BLOCK_N):
            m_n = first + o_n < end
            k = tl.load(p_k_cache + o_tile + first * D, mask=m_n[:, None], other=0.0)
            v = tl.load(p_v_cache + o_tile + first * D, mask=m_n[:, None], other=0.0)
            acc, top, total = _attend_tile(q, k, v, acc, top, total, m_n)

    o_head = (row * SPLITS + split) * Q + head * P + o_h
    tl.store(p_max + o_head, top, mask=m_h)
    tl.store(p_sum + o_head, total, mask=m_h)
    tl.store(p_acc + o_head[:, None] * D + o_d[None, :], acc, mask=m_h[:, None])


@triton.jit
def attention_combine_kernel(
    p_qkv,
    p_positions,
    p_slots,
    p_acc,
    p_max,
    p_sum,
    p_out,
    p_scale,
    p_group_sum,
    slots,
    context,
    Q: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """Join the splits of COLUMNS columns of a row and multiply by the output gate; program (columns, row).

    GROUP 0: p_out is (B, Q·D) of qkv's dtype, p_scale and p_group_sum are unused. Otherwise the result is quantized
    in groups of GROUP, p_out being an int32 view of the values.
    """
    HEADS: tl.constexpr = (COLUMNS + D - 1) // D
    WIDTH: tl.constexpr = COLUMNS // HEADS
    first, row = tl.program_id(0) * COLUMNS, tl.program_id(1).to(tl.int64)
    position, _, valid = _row_of_cache(p_positions, p_slots, row, slots, context)
    chunk = _keys_per_split(position, SPLITS, BLOCK_N)
    o_head = first // D + tl.arange(0, HEADS)
    o_d = tl.multiple_of(first % D, WIDTH) + tl.arange(0, WIDTH)
    # The projection was written before the first kernel, so it may be read before the wait for that kernel.
    p_gate = p_qkv + row * ((2 * Q + 2 * G) * D) + D
    gate = tl.load(p_gate + o_head[:, None] * 2 * D + o_d[None, :], cache_modifier=".cg").to(tl.float32)
    o_s = tl.arange(0, SPLITS)
    m_s = (((o_s == 0) | (o_s * chunk < position)) & valid)[:, None]
    wait_for_previous(PDL)
    o_part = (row * SPLITS + o_s)[:, None] * Q + o_head[None, :]
    acc = tl.load(p_acc + o_part[:, :, None] * D + o_d[None, None, :], mask=m_s[:, :, None], other=0.0)
    top = tl.load(p_max + o_part, mask=m_s, other=float("-inf"))
    total = tl.load(p_sum + o_part, mask=m_s, other=0.0)
    weight = tl.where(m_s, tl.exp2(top - tl.max(top, 0)[None, :]), 0.0)
    out = tl.sum(acc * weight[:, :, None], 0) / tl.sum(total * weight, 0)[:, None] * tl.sigmoid(gate)
    out = tl.where(valid, tl.reshape(out, (COLUMNS,)), 0.0)
    if GROUP == 0:
        tl.store(p_out + row * (Q * D) + first + tl.arange(0, COLUMNS), out.to(p_out.dtype.element_ty))
    else:
        words = tl.reshape(out, (COLUMNS // 8, 8))
        store_quantized(words, p_out, p_scale, p_group_sum, row, first // 8, Q * D // 8, COLUMNS // 8, GROUP // 8)
