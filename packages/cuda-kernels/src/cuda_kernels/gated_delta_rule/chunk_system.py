"""The triangular systems of the chunked rule: what each chunk needs of its own tokens alone, all chunks at once."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.gated_delta_rule.triangular import unit_lower_inverse
from cuda_kernels.primitives import wait_for_previous


@triton.jit
def _chunk_bounds(i_chunk, p_offsets, tokens, sequences, SEQUENCES: tl.constexpr, C: tl.constexpr):
    """Return the first token of a chunk and the end of its sequence, equal to 0 past the last chunk.

    SEQUENCES: 0 without offsets, else a power of two that holds `sequences`.
    """
    first = i_chunk * C
    stop = tokens
    if SEQUENCES:
        o = tl.arange(0, SEQUENCES)
        begin = tl.load(p_offsets + o, mask=o < sequences, other=0)
        end = tl.load(p_offsets + o + 1, mask=o < sequences, other=0)
        chunks = (end - begin + C - 1) // C
        after = tl.cumsum(chunks, 0)
        mine = (after - chunks <= i_chunk) & (i_chunk < after)
        first = tl.sum(tl.where(mine, begin + (i_chunk - after + chunks) * C, 0), 0)
        stop = tl.sum(tl.where(mine, end, 0), 0)
    return first, stop


@triton.jit
def chunk_system_kernel(
    p_q,
    p_k,
    p_g,
    p_beta,
    p_offsets,
    p_inverse,
    p_attention,
    p_from_start,
    p_to_end,
    tokens,
    sequences,
    factor_stride,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    C: tl.constexpr,
    SEQUENCES: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Prepare one chunk of one value head, in the rows of its tokens.

    from_start, to_end (HV, >= T): the decay from the chunk's start to the token, and from it to the chunk's end.
    attention (T, HV, C): q kᵀ under the decay between tokens.
    inverse (T, HV, C): (I + beta k kᵀ under the decay, strictly lower)⁻¹ times beta by column.
    grid: (chunks, HV)
    """
    wait_for_previous(PDL)
    i_head = tl.program_id(1)
    first, end = _chunk_bounds(tl.program_id(0), p_offsets, tokens, sequences, SEQUENCES, C)
    o_c = tl.arange(0, C)
    o_t = first + o_c
    m_t = o_t < end
    o_gate = o_t.to(tl.int64) * HV + i_head
    g = tl.load(p_g + o_gate, mask=m_t, other=0.0)
    beta = tl.load(p_beta + o_gate, mask=m_t, other=0.0)
    decay = tl.cumsum(g, 0)
    o_factor = i_head.to(tl.int64) * factor_stride + o_t
    tl.store(p_from_start + o_factor, tl.exp(decay), mask=m_t)
    tl.store(p_to_end + o_factor, tl.exp(tl.sum(g, 0) - decay), mask=m_t)

    o_k = tl.arange(0, BLOCK_K)
    o_row = (o_t.to(tl.int64) * HK + i_head // (HV // HK)) * DK
    m_row = m_t[:, None] & (o_k < DK)[None, :]
    b_k = tl.load(p_k + o_row[:, None] + o_k[None, :], mask=m_row, other=0.0)
    b_q = tl.load(p_q + o_row[:, None] + o_k[None, :], mask=m_row, other=0.0)
    causal = o_c[:, None] >= o_c[None, :]
    between = tl.exp(tl.where(causal, decay[:, None] - decay[None, :], 0.0))
    o_tile = o_gate[:, None] * C + o_c[None, :]
    attention = tl.where(causal, tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * between, 0.0)
    tl.store(p_attention + o_tile, attention.to(p_attention.dtype.element_ty), mask=m_t[:, None])
    kk = tl.dot(b_k, tl.trans(b_k), input_precision=PRECISION) * between
    lower = tl.where(o_c[:, None] > o_c[None, :], kk * beta[:, None], 0.0)
    inverse = unit_lower_inverse(lower, PRECISION) * beta[None, :]
    tl.store(p_inverse + o_tile, inverse.to(p_inverse.dtype.element_ty), mask=m_t[:, None])
