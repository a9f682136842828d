"""RMS norm kernels: one program a row, the row in registers; plain, gated, and quantized to int8."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import start_next, store_quantized, wait_for_previous


@triton.jit
def rms_norm_kernel(
    p_x, p_weight, p_out, eps, D: tl.constexpr, BLOCK: tl.constexpr, UNIT_OFFSET: tl.constexpr, PDL: tl.constexpr
):
    """Norm row `program_id(0)` of x (T, D)."""
    row = tl.program_id(0).to(tl.int64)
    o_x = tl.arange(0, BLOCK)
    m_x = o_x < D
    gain = tl.load(p_weight + o_x, mask=m_x, other=0.0).to(tl.float32)
    if UNIT_OFFSET:
        gain += 1.0
    wait_for_previous(PDL)
    x = tl.load(p_x + row * D + o_x, mask=m_x, other=0.0).to(tl.float32)
    out = x * tl.rsqrt(tl.sum(x * x, 0) / D + eps) * gain
    tl.store(p_out + row * D + o_x, out.to(p_out.dtype.element_ty), mask=m_x)


@triton.jit(do_not_specialize=["runs"])
def rms_norm_gated_kernel(
    p_x,
    p_gate,
    p_weight,
    p_out,
    runs,
    eps,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    RUNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Norm RUNS runs of D elements of x, of `runs` in all, and multiply them by silu(gate)."""
    o_run = tl.program_id(0).to(tl.int64) * RUNS + tl.arange(0, RUNS)
    o_x = tl.arange(0, BLOCK)
    gain = tl.load(p_weight + o_x, mask=o_x < D, other=0.0).to(tl.float32)
    offsets = o_run[:, None] * D + o_x[None, :]
    mask = (o_run < runs)[:, None] & (o_x < D)[None, :]
    wait_for_previous(PDL)
    x = tl.load(p_x + offsets, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(p_gate + offsets, mask=mask, other=0.0).to(tl.float32)
    out = x * tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None] * gain[None, :] * (gate * tl.sigmoid(gate))
    tl.store(p_out + offsets, out.to(p_out.dtype.element_ty), mask=mask)


@triton.jit
def rms_norm_int8_kernel(
    p_x,
    p_weight,
    p_values,
    p_scale,
    p_group_sum,
    eps,
    WORDS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    NORM: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    PDL: tl.constexpr,
):
    """Norm row `program_id(0)` of x (T, 8 · WORDS), unless NORM is off, and quantize it (see `store_quantized`)."""
    start_next(PDL)  # what follows is a product, with weights to load
    row = tl.program_id(0).to(tl.int64)
    o_x = tl.arange(0, BLOCK_WORDS)[:, None] * 8 + tl.arange(0, 8)[None, :]
    m_x = o_x < WORDS * 8
    if NORM:
        gain = tl.load(p_weight + o_x, mask=m_x, other=0.0).to(tl.float32)
        if UNIT_OFFSET:
            gain += 1.0
    wait_for_previous(PDL)
    x = tl.load(p_x + row * (WORDS * 8) + o_x, mask=m_x, other=0.0).to(tl.float32)
    if NORM:
        x = x * tl.rsqrt(tl.sum(tl.sum(x * x, 1), 0) / (WORDS * 8) + eps) * gain
    store_quantized(x, p_values, p_scale, p_group_sum, row, 0, WORDS, WORDS, GROUP_WORDS)
