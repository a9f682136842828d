"""The whole delta-net step around the rule in plain torch: convolution, gates, norms and slotted state.

Legend: T tokens, B rows, W convolution taps, C channels, Hv value heads, Dk / Dv head sizes.
"""

import torch
from torch.nn import functional

from cuda_kernels import int4
from cuda_kernels.checks import check
from cuda_kernels.gated_delta_rule import reference
from cuda_kernels.gated_delta_rule.layout import (
    DeltaNetShape,
    DeltaNetState,
    DeltaNetWeights,
    channels_of_heads,
    heads_of_channels,
    shape_of,
    split_heads,
)

L2_EPS = 1e-6


def decode(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, slots: torch.Tensor
) -> torch.Tensor:
    """Advance the slots of a batch by one token each; return (B, Hv·Dv). A row of slot -1 is zero."""
    shape, count = shape_of(weights, state), state.recurrent.shape[0]
    for slot in slots.tolist():
        check(-1 <= slot < count, "gated_delta_net_decode", "slots", f"-1 or 0 … {count - 1}", slot)
    out = projection.new_zeros(projection.shape[0], shape.out_width)
    rows = torch.nonzero(slots >= 0).squeeze(-1)
    if rows.numel() == 0:
        return out
    used, x_BP = slots[rows], projection[rows]
    past = channels_of_heads(state.conv[used], shape)
    window_BWC = torch.cat((past, x_BP[:, None, : shape.channels]), 1)
    state.conv[used] = heads_of_channels(window_BWC[:, 1:], shape)
    convolved = (window_BWC.to(_compute(x_BP)) * weights.conv_weight.to(_compute(x_BP)).T).sum(1)
    q, k, v = _heads(convolved, shape)
    g, beta = _gates(x_BP, weights, shape)
    state.recurrent[used], rule_BHD = reference.step(state.recurrent[used], q, k, v, g.exp(), beta)
    out[rows] = _gated_norm(rule_BHD, x_BP, weights, shape)
    return out


def decode_int8(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, slots: torch.Tensor, group_size: int
) -> int4.Int8Rows:
    """Return `decode` quantized to int8 per group."""
    return int4.quantize_activation(decode(projection, weights, state, slots), group_size=group_size)


def prefill(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, start: torch.Tensor, slot: torch.Tensor
) -> torch.Tensor:
    """Advance one slot by T tokens; return (T, Hv·Dv). start = 0 takes the slot's state as zero."""
    shape, count = shape_of(weights, state), state.recurrent.shape[0]
    index, tokens = int(slot), projection.shape[0]
    check(-1 <= index < count, "gated_delta_net_prefill", "slot", f"-1 or 0 … {count - 1}", index)
    check(int(start) >= 0, "gated_delta_net_prefill", "start", "at least 0", int(start))
    if index < 0 or tokens == 0:
        return projection.new_zeros(tokens, shape.out_width)
    conv, recurrent = state.conv[index], state.recurrent[index]
    if int(start) == 0:
        conv, recurrent = torch.zeros_like(conv), torch.zeros_like(recurrent)
    inputs = torch.cat((channels_of_heads(conv, shape), projection[:, : shape.channels]))
    state.conv[index] = heads_of_channels(inputs[tokens:], shape)
    taps = weights.conv_weight.to(_compute(projection)).unbind(1)
    convolved = sum((inputs[w : w + tokens] * tap for w, tap in enumerate(taps)), start=torch.zeros(()))
    q, k, v = _heads(convolved, shape)
    g, beta = _gates(projection, weights, shape)
    rule_THD, final = reference.chunk_gated_delta_rule(q, k, v, g, beta, recurrent.unsqueeze(0))
    state.recurrent[index] = final[0]
    return _gated_norm(rule_THD, projection, weights, shape)


def _heads(convolved: torch.Tensor, shape: DeltaNetShape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q and k, normalized and q scaled, and v, each per value head."""
    q, k, v = split_heads(functional.silu(convolved), shape)
    return _l2_norm(q) * shape.key_dim**-0.5, _l2_norm(k), v


def _l2_norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def _gates(
    projection: torch.Tensor, weights: DeltaNetWeights, shape: DeltaNetShape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return g = -exp(a_log) · softplus(a + dt_bias) and beta = sigmoid(b), (rows, Hv)."""
    compute = _compute(projection)
    b, a = projection[:, -2 * shape.value_heads :].to(compute).split(shape.value_heads, -1)
    g = -weights.a_log.to(compute).exp() * functional.softplus(a + weights.dt_bias.to(compute))
    return g, b.sigmoid()


def _gated_norm(
    x: torch.Tensor, projection: torch.Tensor, weights: DeltaNetWeights, shape: DeltaNetShape
) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight · silu(z) per head, flattened, in the projection's dtype."""
    z = projection[:, shape.channels : shape.channels + shape.out_width].to(x.dtype)
    gate = functional.silu(z).unflatten(-1, (shape.value_heads, shape.value_dim))
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + weights.eps)
    return (normed * weights.norm_weight.to(x.dtype) * gate).flatten(-2).to(projection.dtype)


def _compute(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
