"""The decode step of a gated delta net in one kernel: a program holds a block of columns of one head's state."""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from cuda_kernels.gated_delta_rule.activations import silu, softplus
from cuda_kernels.primitives import wait_for_previous


@triton.jit
def prefetch_to_l2(p):
    """Ask for the cache lines of pointers p; changes nothing, so it may stand before the wait."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [p.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _prefetch_columns(p_state, DK: tl.constexpr, DV: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr):
    """Ask for the cache lines of BLOCK_V float32 columns of DK rows."""
    LINES: tl.constexpr = (BLOCK_V + 31) // 32
    o = tl.arange(0, BLOCK_K * LINES)
    o_k, o_line = o // LINES, o % LINES * 32
    prefetch_to_l2(p_state + tl.where(o_k < DK, o_k, 0) * DV + o_line)


@triton.jit
def _load_taps(p_weight, o_channel, m_channel, W: tl.constexpr):
    """Return the W taps of each channel, oldest first."""
    taps = ()
    for t in tl.static_range(W):
        tap = tl.load(p_weight + o_channel * W + t, mask=m_channel, other=0.0).to(tl.float32)
        taps = taps + (tap,)  # noqa: RUF005  (Triton knows no unpacking)
    return taps


@triton.jit
def _load_past(p_ring, position, m_channel, W: tl.constexpr, STRIDE: tl.constexpr):
    """Return the last W - 1 inputs of each channel before `position`, oldest first; those before 0 are zero."""
    past = ()
    for t in tl.static_range(W - 1):
        # The input of position - (W - 1 - t), whose entry is that of W later.
        p_entry = p_ring + (position + (t + 1)) % W * STRIDE
        past = past + (tl.load(p_entry, mask=m_channel & (position >= W - 1 - t), other=0.0),)  # noqa: RUF005
    return past


@triton.jit
def _convolve(past, new, taps, W: tl.constexpr):
    """Return silu(Σ tap · input) of each channel."""
    total = new.to(tl.float32) * taps[W - 1]
    for t in tl.static_range(W - 1):
        total += past[t].to(tl.float32) * taps[t]
    return silu(total)


@triton.jit
def _place(position, slot, slots, i_head, HV: tl.constexpr):
    """Return the index of a head in the states, the position, and whether the row is a real one.

    A padded row counts as position 0 of slot 0, where a sequence begins: it has no state to read.
    """
    valid = (slot >= 0) & (slot < slots) & (position >= 0)
    return tl.where(valid, slot, 0) * HV + i_head, tl.where(valid, position, 0), valid


@triton.jit
def gated_delta_net_decode_kernel(
    p_projection,
    p_conv_weight,
    p_a_log,
    p_dt_bias,
    p_conv_state,
    p_state,
    p_positions,
    p_slots,
    p_out,
    slots,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PDL: tl.constexpr,
):
    """Advance BLOCK_V columns of one row's head by a token: convolution, gates, rule.

    Programs of a head need no order among them: each owns its columns of the state, and none reads the entry of the
    convolution's ring that this position writes. The first of them writes it for q and k.
    All that earlier kernels wrote is read after the wait; the state is only prefetched before it. A padded row is
    computed from zeros, and neither state nor output of it is stored.
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
    o_tile = o_k[:, None] * DV + o_v[None, :]
    m_tile = (o_k < DK)[:, None] & m_v[None, :]

    taps_qk = _load_taps(p_conv_weight, c_qk, m_qk, W)
    taps_v = _load_taps(p_conv_weight, c_v, m_v, W)
    rate = -tl.exp(tl.load(p_a_log + i_head).to(tl.float32))
    dt_bias = tl.load(p_dt_bias + i_head).to(tl.float32)
    # The place is very likely known before the wait; it is read again after it.
    early_slot = tl.load(p_slots + i_row, cache_modifier=".cg")
    early_position = tl.load(p_positions + i_row, cache_modifier=".cg")
    owner, position, valid = _place(early_position, early_slot, slots, i_head, HV)
    if PDL:
        _prefetch_columns(p_state + owner * (DK * DV) + i_block * BLOCK_V, DK, DV, BLOCK_K, BLOCK_V)
        prefetch_to_l2(p_conv_state + owner * (W * STRIDE) + o_k * (W * STRIDE // BLOCK_K))
    wait_for_previous(PDL)

    # All loads stand before the first use of one, so that they are under way together.
    slot = tl.load(p_slots + i_row)
    new_position = tl.load(p_positions + i_row)
    p_row = p_projection + i_row.to(tl.int64) * (CHANNELS + HV * DV + 2 * HV)
    new_qk = tl.load(p_row + c_qk, mask=m_qk, other=0.0)
    new_v = tl.load(p_row + c_v, mask=m_v, other=0.0)
    b = tl.load(p_row + CHANNELS + HV * DV + i_head)
    a = tl.load(p_row + CHANNELS + HV * DV + HV + i_head)
    p_ring = p_conv_state + owner * (W * STRIDE)
    past_qk = _load_past(p_ring + i_part * DK + o_qk, position, m_qk, W, STRIDE)
    past_v = _load_past(p_ring + 2 * DK + o_v, position, m_v, W, STRIDE)
    state = tl.load(p_state + owner * (DK * DV) + o_tile, mask=m_tile & (position > 0), other=0.0)
    if (slot != early_slot) | (new_position != early_position):
        owner, position, valid = _place(new_position, slot, slots, i_head, HV)
        p_ring = p_conv_state + owner * (W * STRIDE)
        past_qk = _load_past(p_ring + i_part * DK + o_qk, position, m_qk, W, STRIDE)
        past_v = _load_past(p_ring + 2 * DK + o_v, position, m_v, W, STRIDE)
        state = tl.load(p_state + owner * (DK * DV) + o_tile, mask=m_tile & (position > 0), other=0.0)

    qk = tl.reshape(_convolve(past_qk, new_qk, taps_qk, W), (2, BLOCK_K))
    inverse = tl.rsqrt(tl.sum(qk * qk, 1) + 1e-6)
    scale = tl.where(tl.arange(0, 2) == 0, inverse * DK**-0.5, inverse)
    q, k = tl.split(tl.permute(qk * scale[:, None], (1, 0)))
    v = _convolve(past_v, new_v, taps_v, W)

    # Sᵀk and Sᵀq of the decayed old state together; the new state then adds k ⊗ delta.
    state *= tl.exp(rate * softplus(a.to(tl.float32) + dt_bias))
    predicted = tl.sum(state * k[:, None], 0)
    recalled = tl.sum(state * q[:, None], 0)
    delta = (v - predicted) * tl.sigmoid(b.to(tl.float32))
    out = tl.where(valid, recalled + tl.sum(q * k, 0) * delta, 0.0)
    p_columns = p_out + i_row.to(tl.int64) * (HV * DV) + i_head * DV + o_v
    tl.store(p_columns, out.to(p_out.dtype.element_ty), mask=m_v)
    tl.store(p_state + owner * (DK * DV) + o_tile, state + k[:, None] * delta[None, :], mask=m_tile & valid)
    p_entry = p_ring + position % W * STRIDE
    tl.store(p_entry + 2 * DK + o_v, new_v, mask=m_v & valid)
    tl.store(p_entry + i_part * DK + o_qk, new_qk, mask=m_qk & valid & (i_block == 0))
