"""The whole delta-net step around the rule in plain torch: convolution, gates, norms and slotted state.

Legend: T tokens, B rows, W convolution taps, C channels, Hv value heads, Dk / Dv head sizes.
"""

import torch
from torch.nn import functional

from cuda_kernels.checks import check
from cuda_kernels.gated_delta_rule import reference
from cuda_kernels.gated_delta_rule.layout import (
    DeltaNetShape,
    DeltaNetState,
    DeltaNetWeights,
    HeadNorm,
    as_heads_read,
    past_inputs,
    shape_of,
    split_heads,
)

L2_EPS = 1e-6


def decode(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Advance the slots of a batch by one token each; return the rule's output (B, Hv·Dv). A padded row is zero."""
    shape, count = shape_of(weights, state), state.recurrent.shape[0]
    for position, slot in zip(positions.tolist(), slots.tolist(), strict=True):
        check(-1 <= slot < count, "gated_delta_net_decode", "slots", f"-1 or 0 … {count - 1}", slot)
        check(slot == -1 or position >= 0, "gated_delta_net_decode", "positions", "at least 0", position)
    out = projection.new_zeros(projection.shape[0], shape.out_width)
    rows = torch.nonzero(slots >= 0).squeeze(-1)
    if rows.numel() == 0:
        return out
    used, at, x_BP = slots[rows], positions[rows], projection[rows]
    new_BC = x_BP[:, : shape.channels]
    window_BWC = torch.cat((past_inputs(state.conv[used], at, shape), new_BC[:, None]), 1)
    state.conv[used, :, at % shape.conv_width] = as_heads_read(new_BC, shape)
    convolved = (window_BWC.to(_compute(x_BP)) * weights.conv_weight.to(_compute(x_BP)).T).sum(1)
    q, k, v = _heads(convolved, shape)
    g, beta = _gates(x_BP, weights, shape)
    old = state.recurrent[used].masked_fill((at == 0)[:, None, None, None], 0.0)
    state.recurrent[used], rule_BHD = reference.step(old, q, k, v, g.exp(), beta)
    out[rows] = rule_BHD.flatten(1).to(projection.dtype)
    return out


def prefill(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    norm: HeadNorm,
    state: DeltaNetState,
    start: torch.Tensor,
    slot: torch.Tensor,
) -> torch.Tensor:
    """Advance one slot by T tokens; return (T, Hv·Dv), normed. start = 0 takes the slot's state as zero."""
    shape, count = shape_of(weights, state), state.recurrent.shape[0]
    index, tokens = int(slot), projection.shape[0]
    check(-1 <= index < count, "gated_delta_net_prefill", "slot", f"-1 or 0 … {count - 1}", index)
    check(int(start) >= 0, "gated_delta_net_prefill", "start", "at least 0", int(start))
    if index < 0 or tokens == 0:
        return projection.new_zeros(tokens, shape.out_width)
    new_TC = projection[:, : shape.channels]
    inputs = torch.cat((past_inputs(state.conv[index : index + 1], start, shape)[0], new_TC))
    last = torch.arange(max(0, tokens - shape.conv_width), tokens, device=start.device)
    entries = (start + last) % shape.conv_width
    state.conv[index][:, entries] = as_heads_read(new_TC[last], shape).transpose(0, 1)
    taps = weights.conv_weight.to(_compute(projection)).unbind(1)
    convolved = sum((inputs[w : w + tokens] * tap for w, tap in enumerate(taps)), start=torch.zeros(()))
    q, k, v = _heads(convolved, shape)
    g, beta = _gates(projection, weights, shape)
    recurrent = state.recurrent[index : index + 1]
    initial = torch.zeros_like(recurrent) if int(start) == 0 else recurrent
    rule_THD, final = reference.chunk_gated_delta_rule(q, k, v, g, beta, initial)
    state.recurrent[index] = final[0]
    return _gated_norm(rule_THD, projection, norm, shape)


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


def _gated_norm(x: torch.Tensor, projection: torch.Tensor, norm: HeadNorm, shape: DeltaNetShape) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight · silu(z) per head, flattened, in the projection's dtype."""
    z = projection[:, shape.channels : shape.channels + shape.out_width].to(x.dtype)
    gate = functional.silu(z).unflatten(-1, (shape.value_heads, shape.value_dim))
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps)
    return (normed * norm.weight.to(x.dtype) * gate).flatten(-2).to(projection.dtype)


def _compute(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
