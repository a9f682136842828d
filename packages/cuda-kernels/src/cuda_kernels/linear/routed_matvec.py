"""A product with its residual, and the logits of the router behind it, in one kernel for one row.

A router R multiplies the sum of the residual r and the product W x. That is R r + (R W) x: with R W multiplied out
ahead, the logits need no result of the product, and no kernel of their own that would wait for it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.linear.norm_matvec import inverse_rms_of_runs, normed_strip
from cuda_kernels.primitives import issue_loads, start_next, wait_for_previous


@triton.jit
def routed_matvec_kernel(
    p_x,
    p_gate,
    p_norm,
    p_weight,
    p_scales,
    p_residual,
    p_out,
    p_router,
    p_logits,
    eps,
    N,
    E: tl.constexpr,
    W: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute one strip of the product (see `normed_strip`) or BLOCK_E of the E logits a program.

    p_router: (E, N + 8 · W), R and then R W. BLOCK_R: the power of two from the N elements of the residual up.
    """
    strips = tl.cdiv(N, BLOCK_N)
    if tl.program_id(0) < strips:
        normed_strip(
            tl.program_id(0), p_x, p_gate, p_norm, p_weight, p_scales, p_residual, p_out, eps,
            N, W, RUN, GROUP, BLOCK_N, BLOCK_W, PDL,
        )  # fmt: skip
    else:
        _logits(
            (tl.program_id(0) - strips) * BLOCK_E, p_x, p_gate, p_norm, p_residual, p_router, p_logits, eps,
            N, E, W, RUN, BLOCK_W, BLOCK_R, BLOCK_E, PDL,
        )  # fmt: skip


@triton.jit
def _logits(
    first,
    p_x,
    p_gate,
    p_norm,
    p_residual,
    p_router,
    p_logits,
    eps,
    N,
    E: tl.constexpr,
    W: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute logits first … first + BLOCK_E - 1."""
    o_e = first + tl.arange(0, BLOCK_E)
    o_r = tl.arange(0, BLOCK_R)
    o_x = tl.arange(0, 8 * BLOCK_W)
    m_e, m_r, m_x = o_e < E, o_r < N, o_x < 8 * W
    p_row = p_router + o_e[:, None] * (N + 8 * W)
    of_residual = tl.load(p_row + o_r[None, :], mask=m_e[:, None] & m_r[None, :], other=0.0)
    of_x = tl.load(p_row + N + o_x[None, :], mask=m_e[:, None] & m_x[None, :], other=0.0)
    if p_gate is not None:
        gain = tl.load(p_norm + o_x % (8 * RUN), mask=m_x, other=0.0).to(tl.float32)
    start_next(PDL)
    wait_for_previous(PDL)

    residual = tl.load(p_residual + o_r, mask=m_r, other=0.0).to(tl.float32)
    if p_gate is not None:
        gate = tl.load(p_gate + o_x, mask=m_x, other=0.0).to(tl.float32)
        issue_loads(PDL)
    x = tl.load(p_x + o_x, mask=m_x, other=0.0).to(tl.float32)
    if p_gate is not None:
        RUNS: tl.constexpr = BLOCK_W // RUN
        inverse = inverse_rms_of_runs(tl.reshape(x * x, (RUNS, 8 * RUN)), eps, 8 * RUN, W // RUN)
        inverse = tl.reshape(tl.broadcast_to(inverse[:, None], (RUNS, 8 * RUN)), (8 * BLOCK_W,))
        x = x * inverse * gain * (gate * tl.sigmoid(gate))
    logits = tl.sum(of_residual.to(tl.float32) * residual[None, :], 1) + tl.sum(of_x.to(tl.float32) * x[None, :], 1)
    tl.store(p_logits + o_e, logits, mask=m_e)
