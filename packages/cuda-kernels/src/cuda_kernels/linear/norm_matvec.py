"""An RMS norm, the quantization of its result and an int4 matrix-vector product, in one kernel for one row.

Every program norms the whole row again: while its weights arrive that is cheaper than a kernel of its own, which the
product would have to wait for.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.linear.matvec import load_residual, load_weights, store_rows
from cuda_kernels.primitives import dot_groups, issue_loads, quantize_words, start_next, wait_for_previous


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
    """Multiply the norm of x (8 · W,) with BLOCK_N weight rows; BLOCK_W is the power of two from its W words up.

    Without a gate the norm is over the row, times 1 + weight; with one it is over each RUN words, a power of two, times
    weight and silu(gate). GROUP, the words that share a scale, is in words too.
    """
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    words, scales = load_weights(p_weight, p_scales, o_n, N, 0, W, BLOCK_W, GROUP)
    o_x = tl.arange(0, BLOCK_W)[:, None] * 8 + tl.arange(0, 8)[None, :]
    m_x = o_x < 8 * W
    if p_gate is None:
        gain = tl.load(p_norm + o_x, mask=m_x, other=0.0).to(tl.float32) + 1.0
    else:
        gain = tl.load(p_norm + o_x % (8 * RUN), mask=m_x, other=0.0).to(tl.float32)
    start_next(PDL)
    wait_for_previous(PDL)

    if p_gate is not None:
        gate = tl.load(p_gate + o_x, mask=m_x, other=0.0).to(tl.float32)
    acc = load_residual(p_residual, o_n, 1, N, 1)
    if p_gate is not None:
        issue_loads(PDL)
    x = tl.load(p_x + o_x, mask=m_x, other=0.0).to(tl.float32)
    squares = tl.sum(x * x, 1)
    if p_gate is None:
        # A norm only scales: it multiplies the scales of the groups, and their values need not wait for its sum.
        even, odd, scale, _ = quantize_words(x * gain, GROUP)
        scale *= tl.rsqrt(tl.sum(squares, 0) / (8 * W) + eps)
    else:
        RUNS: tl.constexpr = BLOCK_W // RUN
        inverse = tl.rsqrt(tl.sum(tl.reshape(squares, (RUNS, RUN)), 1) / (8 * RUN) + eps)
        inverse = tl.where(tl.arange(0, RUNS) < W // RUN, inverse, 0.0)  # with eps 0 that of the padding is infinite
        x = x * gain * (gate * tl.sigmoid(gate))
        if GROUP <= RUN:
            even, odd, scale, _ = quantize_words(x, GROUP)
            scale = tl.reshape(tl.reshape(scale, (RUNS, RUN // GROUP)) * inverse[:, None], (BLOCK_W // GROUP,))
        else:
            inverse = tl.reshape(tl.broadcast_to(inverse[:, None], (RUNS, RUN)), (BLOCK_W,))
            even, odd, scale, _ = quantize_words(x * inverse[:, None], GROUP)
    groups = dot_groups(words, even[None, :], odd[None, :], GROUP)
    y = tl.sum(groups * (scales * scale[None, :]), 1)
    store_rows(acc + y[None, :], p_out, o_n, 1, N)
