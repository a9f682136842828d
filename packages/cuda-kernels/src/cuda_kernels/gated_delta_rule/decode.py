"""The decode step of a gated delta net in one kernel: a program holds a block of columns of one head's state."""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from cuda_kernels.gated_delta_rule.activations import silu, softplus
from cuda_kernels.primitives import store_quantized, wait_for_previous


@triton.jit
def prefetch_to_l2(p):
    """Ask for the cache lines of pointers p; changes nothing, so it may stand before the wait."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [p.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _load_taps(p_weight, o_channel, m_channel, W: tl.constexpr):
    """Return the W taps of each channel, oldest first."""
    taps = ()
    for t in tl.static_range(W):
        tap = tl.load(p_weight + o_channel * W + t, mask=m_channel, other=0.0).to(tl.float32)
        taps = taps + (tap,)  # noqa: RUF005  (Triton knows no unpacking)
    return taps


@triton.jit
def _load_past(p_past, m_channel, W: tl.constexpr, STRIDE: tl.constexpr):
    """Return the last W - 1 inputs of each channel, oldest first."""
    past = ()
    for t in tl.static_range(W - 1):
        past = past + (tl.load(p_past + t * STRIDE, mask=m_channel, other=0.0),)  # noqa: RUF005
    return past


@triton.jit
def _store_past(p_past, past, new, m_channel, W: tl.constexpr, STRIDE: tl.constexpr):
    """Store the W - 1 youngest inputs of each channel."""
    for t in tl.static_range(W - 2):
        tl.store(p_past + t * STRIDE, past[t + 1], mask=m_channel)
    tl.store(p_past + (W - 2) * STRIDE, new, mask=m_channel)


@triton.jit
def _convolve(past, new, taps, W: tl.constexpr):
    """Return silu(Σ tap · input) of each channel."""
    total = new.to(tl.float32) * taps[W - 1]
    for t in tl.static_range(W - 1):
        total += past[t].to(tl.float32) * taps[t]
    return silu(total)


@triton.jit
def _owner(slot, slots, i_head, HV: tl.constexpr):
    """Return the index of a slot's head in the states, that of slot 0 for an invalid slot, and whether it is valid."""
    valid = (slot >= 0) & (slot < slots)
    return tl.where(valid, slot, 0) * HV + i_head, valid


@triton.jit
def gated_delta_net_decode_kernel(
    p_projection,
    p_conv_weight,
    p_a_log,
    p_dt_bias,
    p_norm_weight,
    p_conv_state,
    p_state,
    p_slots,
    p_out,
    p_scale,
    p_group_sum,
    p_partial,
    p_counters,
    slots,
    eps,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """Advance one row's head by a token: convolution, gates, rule, gated norm; int8 output where GROUP > 0.

    A program holds BLOCK_V columns of the head's state. Where a head has several, the last to arrive, by a counter,
    norms its output (kept in p_partial meanwhile) and moves the window of q and k, which all have read by then.
    All that earlier kernels wrote is read after the wait; the state is only prefetched before it. The row of an invalid
    slot is computed from slot 0, and neither state nor output of it is stored.
    grid: (HV · DV / BLOCK_V, rows)
    """
    SPLIT: tl.constexpr = (DV + BLOCK_V - 1) // BLOCK_V
    i_head = tl.program_id(0) // SPLIT
    i_block = tl.program_id(0) % SPLIT
    i_row = tl.program_id(1)
    CHANNELS: tl.constexpr = 2 * HK * DK + HV * DV
    STRIDE: tl.constexpr = 2 * DK + DV

    o_qk = tl.arange(0, 2 * BLOCK_K) % BLOCK_K
    i_part = tl.arange(0, 2 * BLOCK_K) // BLOCK_K
    c_qk = i_part * (HK * DK) + i_head // (HV // HK) * DK + o_qk
    m_qk = o_qk < DK
    o_k = tl.arange(0, BLOCK_K)
    o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
    c_v = 2 * HK * DK + i_head * DV + o_v
    m_v = o_v < DV
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < DV
    o_tile = o_k[:, None] * DV + o_v[None, :]
    m_tile = (o_k < DK)[:, None] & m_v[None, :]

    taps_qk = _load_taps(p_conv_weight, c_qk, m_qk, W)
    taps_v = _load_taps(p_conv_weight, c_v, m_v, W)
    norm_weight = tl.load(p_norm_weight + o_d, mask=m_d, other=0.0).to(tl.float32)
    rate = -tl.exp(tl.load(p_a_log + i_head).to(tl.float32))
    dt_bias = tl.load(p_dt_bias + i_head).to(tl.float32)
    # The slot is very likely known before the wait; it is read again after it.
    early_slot = tl.load(p_slots + i_row, cache_modifier=".cg")
    owner, _ = _owner(early_slot, slots, i_head, HV)
    if PDL:
        prefetch_to_l2(p_state + owner * (DK * DV) + tl.where(o_k < DK, o_k, 0) * DV + i_block * BLOCK_V)
        o_past = o_k * ((W - 1) * STRIDE // BLOCK_K)
        prefetch_to_l2(p_conv_state + owner * ((W - 1) * STRIDE) + o_past)
    wait_for_previous(PDL)

    slot = tl.load(p_slots + i_row)
    p_row = p_projection + i_row.to(tl.int64) * (CHANNELS + HV * DV + 2 * HV)
    new_qk = tl.load(p_row + c_qk, mask=m_qk, other=0.0)
    new_v = tl.load(p_row + c_v, mask=m_v, other=0.0)
    b = tl.load(p_row + CHANNELS + HV * DV + i_head).to(tl.float32)
    a = tl.load(p_row + CHANNELS + HV * DV + HV + i_head).to(tl.float32)
    z = tl.load(p_row + CHANNELS + i_head * DV + o_d, mask=m_d, other=0.0).to(tl.float32)
    p_past = p_conv_state + owner * ((W - 1) * STRIDE)
    past_qk = _load_past(p_past + i_part * DK + o_qk, m_qk, W, STRIDE)
    past_v = _load_past(p_past + 2 * DK + o_v, m_v, W, STRIDE)
    state = tl.load(p_state + owner * (DK * DV) + o_tile, mask=m_tile, other=0.0)
    if slot != early_slot:
        owner, _ = _owner(slot, slots, i_head, HV)
        p_past = p_conv_state + owner * ((W - 1) * STRIDE)
        past_qk = _load_past(p_past + i_part * DK + o_qk, m_qk, W, STRIDE)
        past_v = _load_past(p_past + 2 * DK + o_v, m_v, W, STRIDE)
        state = tl.load(p_state + owner * (DK * DV) + o_tile, mask=m_tile, other=0.0)
    _, valid = _owner(slot, slots, i_head, HV)

    qk = tl.reshape(_convolve(past_qk, new_qk, taps_qk, W), (2, BLOCK_K))
    inverse = tl.rsqrt(tl.sum(qk * qk, 1) + 1e-6)
    scale = tl.where(tl.arange(0, 2) == 0, inverse * DK**-0.5, inverse)
    q, k = tl.split(tl.permute(qk * scale[:, None], (1, 0)))
    v = _convolve(past_v, new_v, taps_v, W)

    # Sᵀk and Sᵀq of the decayed old state together; the new state then adds k ⊗ delta.
    state *= tl.exp(rate * softplus(a + dt_bias))
    predicted = tl.sum(state * k[:, None], 0)
    recalled = tl.sum(state * q[:, None], 0)
    delta = (v - predicted) * tl.sigmoid(b)
    part = recalled + tl.sum(q * k, 0) * delta
    is_last = True
    if SPLIT > 1:
        p_head = p_partial + (i_row.to(tl.int64) * HV + i_head) * DV
        tl.store(p_head + o_v, part, mask=m_v)
        tl.debug_barrier()
        p_counter = p_counters + i_row * HV + i_head
        is_last = tl.atomic_add(p_counter, 1, sem="acq_rel") == SPLIT - 1
    tl.store(p_state + owner * (DK * DV) + o_tile, state + k[:, None] * delta[None, :], mask=m_tile & valid)
    # Where threads hold the same channel, all must have read the window before one of them moves it.
    tl.debug_barrier()
    _store_past(p_past + 2 * DK + o_v, past_v, new_v, m_v & valid, W, STRIDE)
    if is_last:
        _store_past(p_past + i_part * DK + o_qk, past_qk, new_qk, m_qk & valid, W, STRIDE)
        out = part
        if SPLIT > 1:
            tl.store(p_counter, 0)
            out = tl.load(p_head + o_d, mask=m_d, other=0.0, cache_modifier=".cg")
        out *= tl.rsqrt(tl.sum(out * out, 0) / DV + eps) * norm_weight * silu(z)
        out = tl.where(valid, out, 0.0)
        if GROUP:
            words = tl.reshape(out, (BLOCK_D // 8, 8))
            first = i_head * (DV // 8)
            store_quantized(words, p_out, p_scale, p_group_sum, i_row, first, HV * DV // 8, DV // 8, GROUP // 8)
        else:
            p = p_out + i_row.to(tl.int64) * (HV * DV) + i_head * DV + o_d
            tl.store(p, out.to(p_out.dtype.element_ty), mask=m_d)
