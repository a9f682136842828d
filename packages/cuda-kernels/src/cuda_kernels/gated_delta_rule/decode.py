"""The decode step of a gated delta net in one kernel: one program a row and value head, its state in registers."""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from cuda_kernels.gated_delta_rule.configs import decode_warps
from cuda_kernels.gated_delta_rule.layout import DeltaNetState, DeltaNetWeights, shape_of
from cuda_kernels.primitives import has_dependent_launch, store_quantized, wait_for_previous

_Outputs = dict[str, torch.Tensor | int | None]


@triton.jit
def prefetch_to_l2(p):
    """Ask for the cache lines of pointers p; changes nothing, so it may stand before the wait."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [p.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def silu(x):
    """Return x · sigmoid(x)."""
    return x * tl.sigmoid(x)


@triton.jit
def softplus(x):
    """Return log(1 + exp(x)), linear above 20."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _load_taps(p_weight, o_channel, m_channel, W: tl.constexpr):
    """Return the W taps of each channel, oldest first; a channel that is masked out passes its newest input."""
    taps = ()
    for t in tl.static_range(W):
        tap = tl.load(p_weight + o_channel * W + t, mask=m_channel, other=1.0 * (t // (W - 1))).to(tl.float32)
        taps = taps + (tap,)  # noqa: RUF005  (Triton knows no unpacking)
    return taps


@triton.jit
def _load_window(p_past, m_past, p_new, m_new, W: tl.constexpr, STRIDE: tl.constexpr):
    """Return the last W inputs of each channel, oldest first: W - 1 rows of state and the new one."""
    window = ()
    for t in tl.static_range(W - 1):
        past = tl.load(p_past + t * STRIDE, mask=m_past, other=0.0)
        window = window + (past,)  # noqa: RUF005
    return window + (tl.load(p_new, mask=m_new, other=0.0),)  # noqa: RUF005


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
    slots,
    eps,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """Advance one row's head by a token: convolution, gates, rule, gated norm; int8 output where GROUP > 0.

    grid: (HV, rows). BLOCK: a power of two that holds DK and DV. The head's q, k, v and z are one vector of four parts,
    an element a thread; z passes the convolution as it is, and so gets the SiLU that it needs as a gate.
    All that earlier kernels wrote is read after the wait; the state is only prefetched before it.
    """
    i_head = tl.program_id(0)
    i_row = tl.program_id(1)
    i_key = i_head // (HV // HK)
    CHANNELS: tl.constexpr = 2 * HK * DK + HV * DV

    o_part = tl.arange(0, 4 * BLOCK) // BLOCK
    o_in = tl.arange(0, 4 * BLOCK) % BLOCK
    first_key = o_part * (HK * DK) + i_key * DK
    first_value = 2 * HK * DK + (o_part - 2) * (HV * DV) + i_head * DV
    o_channel = tl.where(o_part < 2, first_key, first_value) + o_in
    m_channel = o_in < tl.where(o_part < 2, DK, DV)
    m_conv = m_channel & (o_part < 3)
    o_d = tl.arange(0, BLOCK)
    m_v = o_d < DV
    o_tile = o_d[:, None] * DV + o_d[None, :]
    m_tile = (o_d < DK)[:, None] & m_v[None, :]

    taps = _load_taps(p_conv_weight, o_channel, m_conv, W)
    norm_weight = tl.load(p_norm_weight + o_d, mask=m_v, other=0.0).to(tl.float32)
    rate = -tl.exp(tl.load(p_a_log + i_head).to(tl.float32))
    dt_bias = tl.load(p_dt_bias + i_head).to(tl.float32)
    if PDL:
        likely = tl.load(p_slots + i_row)
        likely = tl.where((likely >= 0) & (likely < slots), likely, 0)
        o_line = tl.arange(0, BLOCK * BLOCK // 32) * 32  # a cache line holds 32 elements
        prefetch_to_l2(p_state + (likely * HV + i_head) * (DK * DV) + tl.where(o_line < DK * DV, o_line, 0))
    wait_for_previous(PDL)

    slot = tl.load(p_slots + i_row)
    out = tl.zeros((BLOCK,), tl.float32)
    if (slot >= 0) & (slot < slots):
        owner = slot.to(tl.int64) * HV + i_head
        p_tile = p_state + owner * (DK * DV) + o_tile
        state = tl.load(p_tile, mask=m_tile, other=0.0)
        p_row = p_projection + i_row.to(tl.int64) * (CHANNELS + HV * DV + 2 * HV)
        p_past = p_conv_state + owner * ((W - 1) * (2 * DK + DV)) + o_part * DK + o_in
        window = _load_window(p_past, m_conv, p_row + o_channel, m_channel, W, 2 * DK + DV)
        b = tl.load(p_row + CHANNELS + HV * DV + i_head).to(tl.float32)
        a = tl.load(p_row + CHANNELS + HV * DV + HV + i_head).to(tl.float32)

        mixed = window[0].to(tl.float32) * taps[0]
        for t in tl.static_range(1, W):
            mixed += window[t].to(tl.float32) * taps[t]
        parts = tl.reshape(silu(mixed), (4, BLOCK))
        inverse = tl.rsqrt(tl.sum(parts * parts, 1) + 1e-6)
        i_part = tl.arange(0, 4)
        scale = tl.where(i_part == 0, inverse * DK**-0.5, tl.where(i_part == 1, inverse, 1.0))
        qk, vz = tl.split(tl.permute(tl.reshape(parts * scale[:, None], (2, 2, BLOCK)), (2, 1, 0)))
        q, k = tl.split(qk)
        v, gate = tl.split(vz)

        # Sᵀk and Sᵀq of the decayed old state together; the new state then adds k ⊗ delta.
        state *= tl.exp(rate * softplus(a + dt_bias))
        predicted = tl.sum(state * k[:, None], 0)
        recalled = tl.sum(state * q[:, None], 0)
        delta = (v - predicted) * tl.sigmoid(b)
        tl.store(p_tile, state + k[:, None] * delta[None, :], mask=m_tile)
        out = recalled + tl.sum(q * k, 0) * delta
        out *= tl.rsqrt(tl.sum(out * out, 0) / DV + eps) * norm_weight * gate

        # Where threads hold the same channel, all must have read the window before one of them moves it.
        tl.debug_barrier()
        for t in tl.static_range(1, W):
            tl.store(p_past + (t - 1) * (2 * DK + DV), window[t], mask=m_conv)

    if GROUP:
        words = tl.reshape(out, (BLOCK // 8, 8))
        first = i_head * (DV // 8)
        store_quantized(words, p_out, p_scale, p_group_sum, i_row, first, HV * DV // 8, DV // 8, GROUP // 8)
    else:
        p = p_out + i_row.to(tl.int64) * (HV * DV) + i_head * DV + o_d
        tl.store(p, out.to(p_out.dtype.element_ty), mask=m_v)


def launch_decode(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, slots: torch.Tensor, *, out: torch.Tensor
) -> None:
    """Fill `out` (B, Hv·Dv) with the decode step of a batch."""
    _launch(projection, weights, state, slots, {"p_out": out, "p_scale": None, "p_group_sum": None, "GROUP": 0})


def launch_decode_int8(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    slots: torch.Tensor,
    group_size: int,
    *,
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
) -> None:
    """Fill the outputs with the quantized decode step; where a group spans heads, in a second kernel."""
    if state.recurrent.shape[3] % group_size == 0:
        words = values.view(torch.int32)
        outputs: _Outputs = {"p_out": words, "p_scale": scale, "p_group_sum": group_sum, "GROUP": group_size}
        _launch(projection, weights, state, slots, outputs)
        return
    out = projection.new_empty(projection.shape[0], shape_of(weights, state).out_width)
    launch_decode(projection, weights, state, slots, out=out)
    torch.ops.cuda_kernels.quantize_int8.out(out, group_size, values=values, scale=scale, group_sum=group_sum)


def _launch(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    slots: torch.Tensor,
    outputs: _Outputs,
) -> None:
    rows, shape = projection.shape[0], shape_of(weights, state)
    if rows == 0:
        return
    pdl = has_dependent_launch(projection.device)
    gated_delta_net_decode_kernel[(shape.value_heads, rows)](
        p_projection=projection,
        p_conv_weight=weights.conv_weight,
        p_a_log=weights.a_log,
        p_dt_bias=weights.dt_bias,
        p_norm_weight=weights.norm_weight,
        p_conv_state=state.conv,
        p_state=state.recurrent,
        p_slots=slots,
        slots=state.recurrent.shape[0],
        eps=weights.eps,
        HK=shape.key_heads,
        HV=shape.value_heads,
        DK=shape.key_dim,
        DV=shape.value_dim,
        W=shape.conv_width,
        BLOCK=max(16, triton.next_power_of_2(max(shape.key_dim, shape.value_dim))),
        PDL=pdl,
        num_warps=decode_warps(shape),
        launch_pdl=pdl,
        **outputs,
    )
