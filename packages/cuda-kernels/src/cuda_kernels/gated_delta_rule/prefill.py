"""Prefill of a gated delta net: what stands around the chunked rule, in three kernels.

The convolution with its gates and l2 norms comes before the rule; the gated norm, and the new state of the convolution,
come after it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.gated_delta_rule.activations import silu, softplus
from cuda_kernels.primitives import wait_for_previous

ROWS = 16  # tokens a program of the kernels around the rule


@triton.jit
def _slot(p_slot, slots):
    """Return the slot, 0 where it is invalid, and whether it is valid."""
    slot = tl.load(p_slot)
    valid = (slot >= 0) & (slot < slots)
    return tl.where(valid, slot, 0), valid


@triton.jit
def delta_inputs_kernel(
    p_projection,
    p_conv_weight,
    p_a_log,
    p_dt_bias,
    p_conv_state,
    p_start,
    p_slot,
    p_q,
    p_k,
    p_v,
    p_g,
    p_beta,
    tokens,
    slots,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Make the rule's inputs for ROWS tokens of one head of q, k or v; the programs of v make g and beta too.

    grid: (tokens / ROWS, 2 · HK + HV), heads of q, then of k, then of v.
    """
    wait_for_previous(PDL)
    i_head = tl.program_id(1)
    is_key = i_head < 2 * HK
    i_value = i_head - 2 * HK
    slot, valid = _slot(p_slot, slots)
    start = tl.load(p_start)
    STRIDE: tl.constexpr = 2 * DK + DV
    CHANNELS: tl.constexpr = 2 * HK * DK + HV * DV
    WIDTH: tl.constexpr = CHANNELS + HV * DV + 2 * HV

    o_t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m_t = o_t < tokens
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < tl.where(is_key, DK, DV)
    o_channel = tl.where(is_key, i_head * DK, 2 * HK * DK + i_value * DV) + o_d
    # The first value head of a key head keeps the past of its q and k.
    i_owner = tl.where(is_key, i_head % HK * (HV // HK), i_value)
    o_past = tl.where(is_key, i_head // HK, 2) * DK + o_d
    p_ring = p_conv_state + (slot * HV + i_owner) * (W * STRIDE) + o_past[None, :]

    mixed = tl.zeros((ROWS, BLOCK_D), tl.float32)
    for t in tl.static_range(W):
        o_from = o_t.to(tl.int64) + (t - W + 1)
        m_now = ((o_from >= 0) & m_t)[:, None] & m_d[None, :]
        x = tl.load(p_projection + o_from[:, None] * WIDTH + o_channel[None, :], mask=m_now, other=0.0).to(tl.float32)
        if t < W - 1:
            position = start + o_from
            m_past = ((o_from < 0) & (position >= 0) & m_t & valid)[:, None] & m_d[None, :]
            x += tl.load(p_ring + (position % W)[:, None] * STRIDE, mask=m_past, other=0.0).to(tl.float32)
        mixed += x * tl.load(p_conv_weight + o_channel * W + t, mask=m_d, other=0.0).to(tl.float32)[None, :]
    mixed = silu(mixed)

    o_row = o_t.to(tl.int64)[:, None]
    mask = m_t[:, None] & m_d[None, :]
    if is_key:
        inverse = tl.rsqrt(tl.sum(mixed * mixed, 1) + 1e-6)
        mixed *= tl.where(i_head < HK, inverse * DK**-0.5, inverse)[:, None]
        o_out = (o_row * HK + i_head % HK) * DK + o_d[None, :]
        if i_head < HK:
            tl.store(p_q + o_out, mixed.to(p_q.dtype.element_ty), mask=mask)
        else:
            tl.store(p_k + o_out, mixed.to(p_k.dtype.element_ty), mask=mask)
    else:
        tl.store(p_v + (o_row * HV + i_value) * DV + o_d[None, :], mixed.to(p_v.dtype.element_ty), mask=mask)
        p_gates = p_projection + o_t.to(tl.int64) * WIDTH + CHANNELS + HV * DV + i_value
        b = tl.load(p_gates, mask=m_t, other=0.0).to(tl.float32)
        a = tl.load(p_gates + HV, mask=m_t, other=0.0).to(tl.float32)
        rate = -tl.exp(tl.load(p_a_log + i_value).to(tl.float32))
        dt_bias = tl.load(p_dt_bias + i_value).to(tl.float32)
        o_gate = o_t.to(tl.int64) * HV + i_value
        tl.store(p_g + o_gate, rate * softplus(a + dt_bias), mask=m_t)
        tl.store(p_beta + o_gate, tl.sigmoid(b), mask=m_t)


@triton.jit
def delta_output_kernel(
    p_rule,
    p_projection,
    p_norm_weight,
    p_slot,
    p_out,
    tokens,
    slots,
    eps,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Norm ROWS tokens of one value head of the rule's output, times weight and silu(z); zero for an invalid slot.

    grid: (tokens / ROWS, HV)
    """
    wait_for_previous(PDL)
    i_head = tl.program_id(1)
    _, valid = _slot(p_slot, slots)
    o_t = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    o_d = tl.arange(0, BLOCK_D)[None, :]
    mask = (o_t < tokens) & (o_d < DV)
    CHANNELS: tl.constexpr = 2 * HK * DK + HV * DV
    o_out = (o_t * HV + i_head) * DV + o_d
    x = tl.load(p_rule + o_out, mask=mask & valid, other=0.0).to(tl.float32)
    o_z = o_t * (CHANNELS + HV * DV + 2 * HV) + CHANNELS + i_head * DV + o_d
    z = tl.load(p_projection + o_z, mask=mask & valid, other=0.0).to(tl.float32)
    weight = tl.load(p_norm_weight + o_d, mask=o_d < DV, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 1) / DV + eps)
    tl.store(p_out + o_out, (x * inverse[:, None] * weight * silu(z)).to(p_out.dtype.element_ty), mask=mask)


@triton.jit
def delta_conv_state_kernel(
    p_projection,
    p_conv_state,
    p_start,
    p_slot,
    tokens,
    slots,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PDL: tl.constexpr,
):
    """Store the last min(tokens, W) inputs of one value head's channels in the entries of their positions.

    grid: (HV,)
    """
    wait_for_previous(PDL)
    i_head = tl.program_id(0)
    slot, valid = _slot(p_slot, slots)
    start = tl.load(p_start)
    STRIDE: tl.constexpr = 2 * DK + DV
    o_w = tl.arange(0, BLOCK_W)[:, None]
    o_c = tl.arange(0, BLOCK_C)[None, :]
    i_part = tl.minimum(o_c // DK, 2)
    first = tl.where(i_part < 2, i_part * (HK * DK) + i_head // (HV // HK) * DK, 2 * HK * DK + i_head * DV)
    o_channel = first + o_c - i_part * DK
    o_from = (tokens - W + o_w).to(tl.int64)
    mask = (o_w < W) & (o_from >= 0) & (o_c < STRIDE) & valid & (start >= 0)
    o_input = o_from * (2 * HK * DK + 2 * HV * DV + 2 * HV) + o_channel
    inputs = tl.load(p_projection + o_input, mask=mask, other=0.0)
    p_head = p_conv_state + (slot * HV + i_head) * (W * STRIDE) + o_c
    tl.store(p_head + (start + o_from) % W * STRIDE, inputs, mask=mask)
