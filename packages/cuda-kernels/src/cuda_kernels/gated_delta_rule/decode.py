"""The decode step of a gated delta net in one kernel: a program holds a block of columns of one head's state."""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from cuda_kernels.gated_delta_rule.activations import silu, softplus
from cuda_kernels.primitives import INTERPRETED, wait_for_previous

_PLAIN = tl.constexpr(INTERPRETED)  # the interpreter takes seconds for a reduction with a function of its own


@triton.jit
def _load_taps(p_weight, o_channel, m_channel, W: tl.constexpr):
    """Return the W taps of each channel, oldest first."""
    taps = ()
    for t in tl.static_range(W):
        tap = tl.load(p_weight + o_channel * W + t, mask=m_channel, other=0.0).to(tl.float32)
        taps = taps + (tap,)  # noqa: RUF005  (Triton knows no unpacking)
    return taps


@triton.jit
def _entry(position, W: tl.constexpr):
    """Return the entry of the ring that holds the input of a position, at least 0."""
    return (position.to(tl.uint32) % W).to(tl.int32)  # unsigned, a remainder by four is one instruction


@triton.jit
def _load_past(p_ring, position, m_channel, W: tl.constexpr, STRIDE: tl.constexpr):
    """Return the last W - 1 inputs of each channel before `position`, oldest first; those before 0 are zero."""
    past = ()
    for t in tl.static_range(W - 1):
        # position - (W - 1 - t) has the entry of W later.
        p_entry = p_ring + _entry(position + (t + 1), W) * STRIDE
        entry = tl.load(p_entry, mask=m_channel & (position >= W - 1 - t), other=0.0, cache_modifier=".cg")
        past = past + (entry,)  # noqa: RUF005
    return past


@triton.jit
def _load_head(p_ring, p_tile, position, o_k, o_v, m_k, m_v, DK: tl.constexpr, W: tl.constexpr, STRIDE: tl.constexpr):
    """Return what a head keeps of the positions before: the past of q, k and v, and the tile of its state."""
    past_q = _load_past(p_ring + o_k, position, m_k, W, STRIDE)
    past_k = _load_past(p_ring + DK + o_k, position, m_k, W, STRIDE)
    past_v = _load_past(p_ring + 2 * DK + o_v, position, m_v, W, STRIDE)
    m_tile = m_k[:, None] & m_v[None, :] & (position > 0)
    return past_q, past_k, past_v, tl.load(p_tile, mask=m_tile, other=0.0, cache_modifier=".cg")


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
    return tl.where(valid, slot, 0) * HV + i_head, tl.where(valid, position, 0).to(tl.int32), valid


@triton.jit
def _add_each(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _products(q, k, state):
    """Return q·q, k·k and q·k, each the same in all columns, and Sᵀq and Sᵀk: one reduction, so warps meet once."""
    b_q, b_k = tl.broadcast_to(q[:, None], state.shape), tl.broadcast_to(k[:, None], state.shape)
    if _PLAIN:
        return (
            tl.sum(b_q * b_q, 0),
            tl.sum(b_k * b_k, 0),
            tl.sum(b_q * b_k, 0),
            tl.sum(state * b_q, 0),
            tl.sum(state * b_k, 0),
        )
    return tl.reduce((b_q * b_q, b_k * b_k, b_q * b_k, state * b_q, state * b_k), 0, _add_each)


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
    SETTLED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Advance BLOCK_V columns of one row's head by a token: convolution, gates, rule.

    Programs of a head need no order among them: each owns its columns of the state, and none reads the entry of the
    convolution's ring that this position writes. The first of them writes it for q and k.
    What earlier kernels wrote is read after the wait, but for the state where it is SETTLED (see settled.py). A padded
    row is computed from zeros, and neither state nor output of it is stored.
    grid: (HV · DV / BLOCK_V, rows)
    """
    SPLIT: tl.constexpr = (DV + BLOCK_V - 1) // BLOCK_V
    i_head = tl.program_id(0) // SPLIT
    i_block = tl.program_id(0) % SPLIT
    i_row = tl.program_id(1)
    CHANNELS: tl.constexpr = 2 * HK * DK + HV * DV
    STRIDE: tl.constexpr = 2 * DK + DV

    o_k = tl.arange(0, BLOCK_K)
    o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k, m_v = o_k < DK, o_v < DV
    c_q = i_head // (HV // HK) * DK + o_k
    c_k = HK * DK + c_q
    c_v = 2 * HK * DK + i_head * DV + o_v
    o_tile = o_k[:, None] * DV + o_v[None, :]

    taps_q = _load_taps(p_conv_weight, c_q, m_k, W)
    taps_k = _load_taps(p_conv_weight, c_k, m_k, W)
    taps_v = _load_taps(p_conv_weight, c_v, m_v, W)
    rate = -tl.exp(tl.load(p_a_log + i_head).to(tl.float32))
    dt_bias = tl.load(p_dt_bias + i_head).to(tl.float32)
    # The place is very likely known before the wait; it is read again after it.
    early_slot = tl.load(p_slots + i_row, cache_modifier=".cg")
    early_position = tl.load(p_positions + i_row, cache_modifier=".cg")
    owner, position, valid = _place(early_position, early_slot, slots, i_head, HV)
    p_ring = p_conv_state + owner * (W * STRIDE)
    p_tile = p_state + owner * (DK * DV) + o_tile
    if SETTLED:
        past_q, past_k, past_v, state = _load_head(p_ring, p_tile, position, o_k, o_v, m_k, m_v, DK, W, STRIDE)
    p_row = p_projection + i_row.to(tl.int64) * (CHANNELS + HV * DV + 2 * HV)
    p_gates = p_row + CHANNELS + HV * DV + i_head
    wait_for_previous(PDL)

    # All loads stand before the first use of one, so that they are under way together. Those of the projection are
    # volatile: the assembler would move some behind the branch, to wait there a second time.
    slot = tl.load(p_slots + i_row)
    new_position = tl.load(p_positions + i_row)
    new_q = tl.load(p_row + c_q, mask=m_k, other=0.0, volatile=True)
    new_k = tl.load(p_row + c_k, mask=m_k, other=0.0, volatile=True)
    new_v = tl.load(p_row + c_v, mask=m_v, other=0.0, volatile=True)
    b = tl.load(p_gates, volatile=True)
    a = tl.load(p_gates + HV, volatile=True)
    if not SETTLED:
        past_q, past_k, past_v, state = _load_head(p_ring, p_tile, position, o_k, o_v, m_k, m_v, DK, W, STRIDE)
    if (slot != early_slot) | (new_position != early_position):
        owner, position, valid = _place(new_position, slot, slots, i_head, HV)
        p_ring = p_conv_state + owner * (W * STRIDE)
        p_tile = p_state + owner * (DK * DV) + o_tile
        past_q, past_k, past_v, state = _load_head(p_ring, p_tile, position, o_k, o_v, m_k, m_v, DK, W, STRIDE)

    q = _convolve(past_q, new_q, taps_q, W)
    k = _convolve(past_k, new_k, taps_k, W)
    v = _convolve(past_v, new_v, taps_v, W)
    # Of q and k before their l2 norms, which are factors only, and of the state before it decays.
    qq, kk, qk, recalled, predicted = _products(q, k, state)
    decay = tl.exp(rate * softplus(a.to(tl.float32) + dt_bias))
    inverse_q, inverse_k = tl.rsqrt(qq + 1e-6) * DK**-0.5, tl.rsqrt(kk + 1e-6)
    delta = (v - decay * inverse_k * predicted) * (inverse_k * tl.sigmoid(b.to(tl.float32)))
    out = tl.where(valid, inverse_q * (decay * recalled + qk * delta), 0.0)
    p_columns = p_out + i_row.to(tl.int64) * (HV * DV) + i_head * DV + o_v
    tl.store(p_columns, out.to(p_out.dtype.element_ty), mask=m_v)
    tl.store(p_tile, decay * state + k[:, None] * delta[None, :], mask=m_k[:, None] & m_v[None, :] & valid)
    p_entry = p_ring + _entry(position, W) * STRIDE
    tl.store(p_entry + 2 * DK + o_v, new_v, mask=m_v & valid)
    m_first = m_k & valid & (i_block == 0)
    tl.store(p_entry + o_k, new_q, mask=m_first)
    tl.store(p_entry + DK + o_k, new_k, mask=m_first)
