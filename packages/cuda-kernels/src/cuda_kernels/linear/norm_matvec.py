"""An RMS norm, the quantization of its result and an int4 matrix-vector product, in one kernel for one row.

Every program norms the whole row again: while its weights arrive that is cheaper than a kernel of its own, which the
product would have to wait for.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.linear.matvec import load_residual, load_weights, store_rows
from cuda_kernels.primitives import (
    dot_groups,
    issue_loads,
    quantize_words,
    start_next,
    wait_for_previous,
)


@triton.jit
def normed_strip(
    strip,
    p_x,
    p_gate,
    p_norm,
    p_weight,
    p_scales,
    p_residual,
    p_out,
    eps,
    N,
    W: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    PDL: tl.constexpr,
):
    """Multiply the norm of x (8 · W,) with the rows of one strip; BLOCK_W is the power of two from its W words up.

    Without a gate the norm is over the row, times 1 + weight; with one it is over each RUN words, a power of two, times
    weight and silu(gate); without a weight x is taken as it is. GROUP, the words that share a scale, is in words too.
    """
    o_n = strip * BLOCK_N + tl.arange(0, BLOCK_N)
    words, scales = load_weights(p_weight, p_scales, o_n, N, 0, W, BLOCK_W, GROUP)
    o_x = tl.arange(0, BLOCK_W)[:, None] * 8 + tl.arange(0, 8)[None, :]
    m_x = o_x < 8 * W
    if p_gate is not None:
        gain = tl.load(p_norm + o_x % (8 * RUN), mask=m_x, other=0.0).to(tl.float32)
    elif p_norm is not None:
        gain = tl.load(p_norm + o_x, mask=m_x, other=0.0).to(tl.float32) + 1.0
    start_next(PDL)
    wait_for_previous(PDL)

    if p_gate is not None:
        gate = tl.load(p_gate + o_x, mask=m_x, other=0.0).to(tl.float32)
    acc = load_residual(p_residual, o_n, 1, N, 1)
    if p_gate is not None:
        issue_loads(PDL)
    x = tl.load(p_x + o_x, mask=m_x, other=0.0).to(tl.float32)
    if p_gate is not None:
        even, odd, scale = _quantize_gated(x, gate, gain, eps, W, RUN, GROUP)
    elif p_norm is not None:
        # A norm only scales: it multiplies the scales of the groups, and their values need not wait for its sum.
        even, odd, scale, _ = quantize_words(x * gain, GROUP)
        scale *= tl.rsqrt(tl.sum(tl.sum(x * x, 1), 0) / (8 * W) + eps)
    else:
        even, odd, scale, _ = quantize_words(x, GROUP)
    groups = dot_groups(words, even[None, :], odd[None, :], GROUP)
    y = tl.sum(groups * (scales * scale[None, :]), 1)
    store_rows(acc + y[None, :], p_out, o_n, 1, N)


@triton.jit
def inverse_rms_of_runs(squares, eps, SIZE: tl.constexpr, COUNT: tl.constexpr):
    """Return 1 / rms of each run of SIZE elements from squares (RUNS, …), whose first COUNT runs are not padding."""
    inverse = tl.rsqrt(tl.sum(squares, 1) / SIZE + eps)
    return tl.where(tl.arange(0, squares.shape[0]) < COUNT, inverse, 0.0)  # with eps 0 that of padding is infinite


@triton.jit
def _quantize_gated(x, gate, gain, eps, W: tl.constexpr, RUN: tl.constexpr, GROUP: tl.constexpr):
    """Return (even, odd, scale) of x (W', 8), normed over each RUN words, times gain and silu(gate)."""
    BLOCK_W: tl.constexpr = x.shape[0]
    RUNS: tl.constexpr = BLOCK_W // RUN
    inverse = inverse_rms_of_runs(tl.reshape(tl.sum(x * x, 1), (RUNS, RUN)), eps, 8 * RUN, W // RUN)
    x = x * gain * (gate * tl.sigmoid(gate))
    if GROUP <= RUN:
        even, odd, scale, _ = quantize_words(x, GROUP)
        scale = tl.reshape(tl.reshape(scale, (RUNS, RUN // GROUP)) * inverse[:, None], (BLOCK_W // GROUP,))
    else:
        inverse = tl.reshape(tl.broadcast_to(inverse[:, None], (RUNS, RUN)), (BLOCK_W,))
        even, odd, scale, _ = quantize_words(x * inverse[:, None], GROUP)
    return even, odd, scale


@triton.jit
def norm_matvec_kernel(
    p_x,
    p_gate,
    p_norm,
    p_weight,
    p_scales,
    p_residual,
    p_out,
    eps,
    N,
    W: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute one strip a program; see `normed_strip`."""
    normed_strip(
        tl.program_id(0), p_x, p_gate, p_norm, p_weight, p_scales, p_residual, p_out, eps,
        N, W, RUN, GROUP, BLOCK_N, BLOCK_W, PDL,
    )  # fmt: skip
