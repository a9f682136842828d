"""The sum over the slots of a token, in order, of what the grouped products left."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import wait_for_previous


@triton.jit
def combine(
    p_y,
    p_ids,
    p_residual,
    p_out,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Add the rows of one token's slots whose expert is known, and the residual."""
    BLOCKS: tl.constexpr = (HIDDEN + BLOCK - 1) // BLOCK
    token = (tl.program_id(0) // BLOCKS).to(tl.int64)
    column = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    m_column = column < HIDDEN
    wait_for_previous(PDL)
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(SLOTS):
        expert = tl.load(p_ids + token * SLOTS + slot)
        known = m_column & (expert >= 0) & (expert < EXPERTS)
        total += tl.load(p_y + (token * SLOTS + slot) * HIDDEN + column, mask=known, other=0.0).to(tl.float32)
    if p_residual is not None:
        total += tl.load(p_residual + token * HIDDEN + column, mask=m_column, other=0.0).to(tl.float32)
    tl.store(p_out + token * HIDDEN + column, total.to(p_out.dtype.element_ty), mask=m_column)
