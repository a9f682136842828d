"""Prefill attention: keys and values go into the cache first, then tiles of queries attend to the cache.

The query heads of one key-value head are packed into the rows of a tile, token by token: 128 rows are 16 tokens
of 8 heads, so a causal tile wastes little on hidden keys, and keys are read once for all the heads. No mask tensor:
keys that all rows of a tile see take no mask, later ones are compared, and hidden ones are never visited.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl

from cuda_kernels.attention.rotary import load_heads, load_rotation, rotate

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _place(p_start, p_slot, tokens, slots, context):
    """Return (start, slot, whether this is a real slot with room for the tokens)."""
    start, slot = tl.load(p_start), tl.load(p_slot)
    valid = (slot >= 0) & (slot < slots) & (start >= 0) & (start + tokens <= context)
    return start.to(tl.int32), slot, valid


@triton.jit(do_not_specialize=["tokens"])
def attention_prepare_kernel(
    p_qkv,
    p_q_norm,
    p_k_norm,
    p_rope,
    p_k_cache,
    p_v_cache,
    p_q,
    p_start,
    p_slot,
    eps,
    tokens,
    slots,
    context,
    Q: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Norm and rotate one head of BLOCK_T tokens; program (tokens, head), query heads first.

    Queries go, scaled for exp2, to p_q (G, T, P, D), keys and values to the cache.
    """
    head = tl.program_id(1)
    start, slot, valid = _place(p_start, p_slot, tokens, slots, context)
    if valid == 0:
        return
    P: tl.constexpr = Q // G
    o_t = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    o_d = tl.arange(0, D)[None, :]
    m_t = o_t < tokens
    p_rows = p_qkv + o_t.to(tl.int64) * ((2 * Q + 2 * G) * D)
    p_angles = p_rope + (start + o_t) * ROTARY
    dtype = p_q.dtype.element_ty
    if head < Q:
        direct, crossed = load_rotation(p_q_norm, p_angles, m_t, D, ROTARY)
        q, partner = load_heads(p_rows + head * 2 * D, m_t, D, ROTARY)
        q = rotate(q, partner, direct, crossed, eps, D)
        o_row = ((head // P) * tokens + o_t).to(tl.int64) * P + head % P
        tl.store(p_q + o_row * D + o_d, (q * (_LOG2_E / tl.sqrt(D * 1.0))).to(dtype), mask=m_t)
    else:
        group = head - Q
        o_cache = ((slot * G + group) * context + start + o_t) * D + o_d
        direct, crossed = load_rotation(p_k_norm, p_angles, m_t, D, ROTARY)
        k, partner = load_heads(p_rows + (Q + head) * D, m_t, D, ROTARY)
        k = rotate(k, partner, direct, crossed, eps, D)
        tl.store(p_k_cache + o_cache, k.to(dtype), mask=m_t)
        v = tl.load(p_rows + (Q + G + head) * D + o_d, mask=m_t, other=0.0)
        tl.store(p_v_cache + o_cache, v, mask=m_t)


@triton.jit
def _attend_tile(q, t_k, t_v, row, acc, top, total, m_visible, m_key, MASKED: tl.constexpr):
    """Fold the tile of keys and values at `row` into the running sums; MASKED: hide what the masks say."""
    s = tl.dot(q, tl.trans(t_k.load([row, 0])), input_precision="ieee")
    if MASKED:
        s = tl.where(m_visible, s, float("-inf"))
    higher = tl.maximum(top, tl.max(s, 1))
    p = tl.exp2(s - higher[:, None])
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(p, 1)
    v = t_v.load([row, 0])
    if MASKED:
        # What lies in the cache past the last token may be anything, and zero times NaN is NaN.
        v = tl.where(m_key[:, None], v, 0.0).to(v.dtype)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, higher, total


@triton.jit
def _store_gated(acc, p_gate, p_result, m_m, PARTS: tl.constexpr):
    """Store acc times sigmoid(gate), PARTS columns blocks one after the other, to keep few gates in registers."""
    if PARTS == 1:
        WIDTH: tl.constexpr = acc.shape[1]
        o_d = tl.arange(0, WIDTH)[None, :]
        gate = tl.load(p_gate + o_d, mask=m_m, other=0.0).to(tl.float32)
        tl.store(p_result + o_d, (acc * tl.sigmoid(gate)).to(p_result.dtype.element_ty), mask=m_m)
    else:
        HALF: tl.constexpr = acc.shape[1] // 2
        left, right = tl.split(tl.permute(tl.reshape(acc, (acc.shape[0], 2, HALF)), (0, 2, 1)))
        _store_gated(left, p_gate, p_result, m_m, PARTS // 2)
        _store_gated(right, p_gate + HALF, p_result + HALF, m_m, PARTS // 2)


@triton.jit(do_not_specialize=["tokens"])
def attention_prefill_kernel(
    t_q,
    t_k,
    t_v,
    t_k_edge,
    t_v_edge,
    p_qkv,
    p_start,
    p_slot,
    p_out,
    tokens,
    slots,
    context,
    Q: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EDGE_N: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Attend with BLOCK_M rows (token, query head) of one key-value head; program (key-value head, tile).

    t_q: tiles of queries (G·T·P, D); t_k, t_v: tiles of BLOCK_N keys and values of the caches (S·G·L, D), t_k_edge and
    t_v_edge of EDGE_N, for the keys that not every row of the tile sees. The longest tiles start first.
    """
    group = tl.program_id(0)
    P: tl.constexpr = Q // G
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    o_m = first + tl.arange(0, BLOCK_M)
    o_d, o_n = tl.arange(0, D)[None, :], tl.arange(0, EDGE_N)
    token, head = o_m // P, group * P + o_m % P
    m_m = (token < tokens)[:, None]
    p_result = p_out + token.to(tl.int64)[:, None] * (Q * D) + head[:, None] * D
    start, slot, valid = _place(p_start, p_slot, tokens, slots, context)
    if valid == 0:
        tl.store(p_result + o_d, tl.zeros((BLOCK_M, D), p_out.dtype.element_ty), mask=m_m)
        return

    base = ((slot * G + group) * context).to(tl.int32)
    q = t_q.load([group * tokens * P + first, 0])
    # Keys 0 … shared - 1 are visible to every row of the tile, none from `end` on is visible to any.
    shared = (start + first // P + 1) // BLOCK_N * BLOCK_N
    end = start + tl.minimum((first + BLOCK_M - 1) // P, tokens - 1) + 1
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    for key in range(0, shared, BLOCK_N):
        acc, top, total = _attend_tile(q, t_k, t_v, base + key, acc, top, total, None, None, False)
    for key in range(shared, end, EDGE_N):
        m_key = key + o_n < end
        m_visible = key + o_n[None, :] <= start + token[:, None]
        acc, top, total = _attend_tile(q, t_k_edge, t_v_edge, base + key, acc, top, total, m_visible, m_key, True)

    p_gate = p_qkv + token.to(tl.int64)[:, None] * ((2 * Q + 2 * G) * D) + head[:, None] * 2 * D + D
    _store_gated(acc / total[:, None], p_gate, p_result, m_m, PARTS)
