"""The gated delta rule in chunks of 64 tokens: the recurrence over the chunks.

The state is held transposed, so that it, the new values and the outputs stay in the registers of the tensor cores from
product to product. Legend: C tokens of a chunk, D key size, V columns of a head's values.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import wait_for_previous

CHUNK = 64


@triton.jit
def chunk_recurrence_kernel(
    p_q,
    p_k,
    p_v,
    p_inverse,
    p_attention,
    p_from_start,
    p_to_end,
    p_offsets,
    p_initial,
    p_final,
    p_start,
    p_slot,
    p_out,
    tokens,
    slots,
    factor_stride,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    C: tl.constexpr,
    TENSOR_MAPS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Carry one sequence's state, of one head and BLOCK_V value columns, over its chunks, and write the outputs.

    p_offsets: sequences, one where None. p_initial: zeros where None. p_slot: the state is that of a slot, taken as
    zero where start is 0; else of the sequence. An invalid slot has no state.
    TENSOR_MAPS: q, k, v, inverse, attention and out are tensor maps of their rows, heads side by side, and the factors
    are tensor maps too, of zeros past the last token; one sequence.
    grid: (DV / BLOCK_V, HV, sequences)
    """
    wait_for_previous(PDL)
    i_block = tl.program_id(0)
    i_head = tl.program_id(1)
    i_state = tl.program_id(2)
    begin = 0
    end = tokens
    if p_offsets is not None:
        begin = tl.load(p_offsets + i_state)
        end = tl.load(p_offsets + i_state + 1)
    is_used = True
    is_kept = True
    if p_slot is not None:
        i_state = tl.load(p_slot)
        is_kept = (i_state >= 0) & (i_state < slots)
        is_used = is_kept & (tl.load(p_start) > 0)

    o_c = tl.arange(0, C)
    o_k = tl.arange(0, BLOCK_K)
    o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k = o_k < DK
    m_v = tl.full((BLOCK_V,), True, tl.int1) if DV % BLOCK_V == 0 else o_v < DV
    o_state = (i_state.to(tl.int64) * HV + i_head) * (DK * DV) + o_k[None, :] * DV + o_v[:, None]
    m_state = m_v[:, None] & m_k[None, :]
    state_VD = tl.zeros((BLOCK_V, BLOCK_K), tl.float32)
    if p_initial is not None:
        state_VD = tl.load(p_initial + o_state, mask=m_state & is_used, other=0.0)

    i_key = i_head // (HV // HK)
    for first in range(begin, end, C):
        o_t = (first + o_c).to(tl.int64)
        m_t = o_t < end
        o_gate = o_t * HV + i_head
        o_value = o_gate[:, None] * DV + o_v[None, :]
        m_value = m_t[:, None] & m_v[None, :]
        if TENSOR_MAPS:
            b_k = p_k.load([first, i_key * DK])
            b_q = p_q.load([first, i_key * DK])
            b_inverse = p_inverse.load([first, i_head * C])
            b_attention = p_attention.load([first, i_head * C])
            b_v = p_v.load([first, i_head * DV + i_block * BLOCK_V])
            from_start = tl.reshape(p_from_start.load([i_head, first]), (C,))
        else:
            o_key = (o_t[:, None] * HK + i_key) * DK + o_k[None, :]
            o_pair = o_gate[:, None] * C + o_c[None, :]
            m_key = m_t[:, None] & m_k[None, :]
            b_k = tl.load(p_k + o_key, mask=m_key, other=0.0)
            b_q = tl.load(p_q + o_key, mask=m_key, other=0.0)
            b_inverse = tl.load(p_inverse + o_pair, mask=m_t[:, None], other=0.0)
            b_attention = tl.load(p_attention + o_pair, mask=m_t[:, None], other=0.0)
            b_v = tl.load(p_v + o_value, mask=m_value, other=0.0)
            o_factor = i_head.to(tl.int64) * factor_stride + o_t
            from_start = tl.load(p_from_start + o_factor, mask=m_t, other=0.0)
        whole = tl.sum(tl.where(o_c == tl.minimum(end - first, C) - 1, from_start, 0.0), 0)

        b_state = state_VD.to(b_k.dtype)
        predicted_VC = tl.dot(b_state, tl.trans(b_k), input_precision=PRECISION) * from_start[None, :]
        recalled_VC = tl.dot(b_state, tl.trans(b_q), input_precision=PRECISION) * from_start[None, :]
        error_VC = (tl.trans(b_v).to(tl.float32) - predicted_VC).to(b_k.dtype)
        new_VC = tl.dot(error_VC, tl.trans(b_inverse), input_precision=PRECISION)
        out_VC = tl.dot(new_VC.to(b_k.dtype), tl.trans(b_attention), acc=recalled_VC, input_precision=PRECISION)
        b_out = tl.trans(out_VC.to(b_k.dtype))
        if TENSOR_MAPS:
            p_out.store([first, i_head * DV + i_block * BLOCK_V], b_out)
            to_end = tl.reshape(p_to_end.load([i_head, first]), (C,))
        else:
            tl.store(p_out + o_value, b_out, mask=m_value)
            to_end = tl.load(p_to_end + i_head.to(tl.int64) * factor_stride + o_t, mask=m_t, other=0.0)
        to_end_VC = (new_VC * to_end[None, :]).to(b_k.dtype)
        state_VD = tl.dot(to_end_VC, b_k, acc=state_VD * whole, input_precision=PRECISION)
    tl.store(p_final + o_state, state_VD, mask=m_state & is_kept)
