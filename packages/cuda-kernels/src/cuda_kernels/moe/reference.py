"""The operators of the mixture of experts in plain torch.

T tokens, H hidden, E experts, I expert width, k slots of a token (routed, then shared), P = T·k pairs of both.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from cuda_kernels import int4
from cuda_kernels.moe.layout import DenseExperts, Int4Experts, Routing, routed_experts
from cuda_kernels.norm.reference import rms_norm

# Returns the weights (2I, H) and (H, I) of the expert of an id.
LoadExpert = Callable[[int], tuple[torch.Tensor, torch.Tensor]]

# Up to this many tokens each is computed by itself, so that its bits do not depend on its batch.
ROWWISE_TOKENS = 16


def moe_router(
    x_TH: torch.Tensor, weight_EH: torch.Tensor, top_k: int, shared_experts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (weights (T, k) float32, ids (T, k) int32): softmax over the top_k logits, then the shared experts."""
    return choose(x_TH.to(torch.float32) @ weight_EH.to(torch.float32).T, top_k, shared_experts)


def choose(logits: torch.Tensor, top_k: int, shared_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `moe_router` does, from its logits (T, E), the last of which gates the shared experts."""
    experts = routed_experts(logits.shape[1], shared_experts)
    # A stable sort and not topk: among equal logits the lower index comes first.
    values, order = torch.sort(logits[:, :experts], dim=-1, descending=True, stable=True)
    weights = torch.softmax(values[:, :top_k], dim=-1)
    ids = order[:, :top_k]
    if shared_experts:
        gate = torch.sigmoid(logits[:, experts:])
        shared = torch.arange(experts, experts + shared_experts, device=ids.device)
        weights = torch.cat((weights, gate.expand(-1, shared_experts)), dim=-1)
        ids = torch.cat((ids, shared.expand(ids.shape[0], -1)), dim=-1)
    return weights.contiguous(), ids.to(torch.int32)


def rms_norm_router_int8(
    x_TH: torch.Tensor,
    norm_weight_H: torch.Tensor,
    eps: float,
    weight_EH: torch.Tensor,
    top_k: int,
    shared_experts: int,
    group_size: int,
) -> tuple[torch.Tensor, ...]:
    """Return the routing of the normed rows and the rows themselves in int8; the norm is not rounded between."""
    normed = rms_norm(x_TH.to(torch.float32), norm_weight_H, eps, unit_offset=True)
    return (
        *moe_router(normed, weight_EH, top_k, shared_experts),
        *int4.quantize_activation(normed, group_size=group_size),
    )


def routed_moe_int4_int8(
    x_TH: torch.Tensor,
    norm_weight_H: torch.Tensor,
    eps: float,
    logits_TE: torch.Tensor,
    experts: Int4Experts,
    top_k: int,
    shared_experts: int,
) -> torch.Tensor:
    """Return x plus the products of its normed rows with the experts that the logits, so scaled, choose."""
    x = x_TH.to(torch.float32)
    weights, ids = choose(logits_TE * torch.rsqrt(x.square().mean(1, keepdim=True) + eps), top_k, shared_experts)
    group = x_TH.shape[1] // experts.gate_up_scales.shape[2]
    normed = int4.quantize_activation(rms_norm(x, norm_weight_H, eps, unit_offset=True), group_size=group)
    return fused_moe_int4_int8(normed, Routing(weights=weights, ids=ids), experts, x_TH, x_TH.dtype)


def fused_moe(
    x_TH: torch.Tensor, routing: Routing, experts: DenseExperts, residual_TH: torch.Tensor | None
) -> torch.Tensor:
    """Return sum over a token's slots of weight · down(silu(gate(x)) · up(x)), plus the residual, in x's dtype."""

    def load(expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        return experts.gate_up[expert], experts.down[expert]

    return _experts(x_TH, routing, load, experts.gate_up.shape[0], residual_TH).to(x_TH.dtype)


def fused_moe_int4(
    x_TH: torch.Tensor, routing: Routing, experts: Int4Experts, residual_TH: torch.Tensor | None
) -> torch.Tensor:
    """Return `fused_moe` of the weights dequantized to x's dtype, bit for bit; only selected ones are dequantized."""

    def load(expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            int4.dequantize(experts.gate_up[expert], experts.gate_up_scales[expert], dtype=x_TH.dtype),
            int4.dequantize(experts.down[expert], experts.down_scales[expert], dtype=x_TH.dtype),
        )

    return _experts(x_TH, routing, load, experts.gate_up.shape[0], residual_TH).to(x_TH.dtype)


def fused_moe_int4_int8(
    rows: int4.Int8Rows,
    routing: Routing,
    experts: Int4Experts,
    residual_TH: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Return `fused_moe_int4` of the dequantized activations, in float32 throughout, in `out_dtype`.

    The group sums are not read: they only serve kernels that multiply raw nibbles. The product of gate and up stays
    float32 here, where kernels quantize it to int8 again.
    """
    x_TH = int4.dequantize_activation(rows.values, rows.scale)
    return fused_moe_int4(x_TH, routing, experts, residual_TH).to(out_dtype)


def moe_align_block_size(
    ids_Tk: torch.Tensor, block_size: int, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (sorted_ids, expert_ids, num_padded): pairs grouped by expert, each run padded to whole blocks."""
    flat = ids_Tk.flatten().to(torch.int64)
    pairs = flat.numel()
    known = (flat >= 0) & (flat < num_experts)
    # Unknown ids sort behind all experts and are cut off by the counts.
    order = torch.sort(torch.where(known, flat, num_experts), stable=True).indices
    counts = torch.bincount(flat[known], minlength=num_experts)
    blocks = (counts + block_size - 1) // block_size
    first = torch.cumsum(counts, 0) - counts
    padded_first = (torch.cumsum(blocks, 0) - blocks) * block_size

    capacity = align_capacity(pairs, block_size, num_experts)
    sorted_ids = torch.full((capacity,), pairs, dtype=torch.int32, device=flat.device)
    placed = order[: int(counts.sum())]
    expert = flat[placed]
    position = padded_first[expert] + torch.arange(placed.numel(), device=flat.device) - first[expert]
    sorted_ids[position] = placed.to(torch.int32)

    expert_ids = torch.full((capacity // block_size,), -1, dtype=torch.int32, device=flat.device)
    used = torch.repeat_interleave(torch.arange(num_experts, device=flat.device), blocks)
    expert_ids[: used.numel()] = used.to(torch.int32)
    return sorted_ids, expert_ids, (blocks.sum() * block_size).to(torch.int32).reshape(1)


def align_capacity(pairs: int, block_size: int, num_experts: int) -> int:
    """Return the most entries that `pairs` can take when each expert's run is padded to whole blocks."""
    return (pairs + num_experts * (block_size - 1)) // block_size * block_size


def _experts(
    x_TH: torch.Tensor,
    routing: Routing,
    load: LoadExpert,
    num_experts: int,
    residual_TH: torch.Tensor | None,
) -> torch.Tensor:
    """Return the weighted sum over slots plus the residual, in float32."""
    weights_Tk, ids_Tk = routing.weights, routing.ids
    tokens, slots = ids_Tk.shape
    pairs_TkH = x_TH.new_zeros((tokens, slots, x_TH.shape[1]), dtype=torch.float32)
    known_Tk = (ids_Tk >= 0) & (ids_Tk < num_experts)
    if tokens <= ROWWISE_TOKENS:
        for t, ids in enumerate(ids_Tk.tolist()):
            known = [slot for slot, expert in enumerate(ids) if 0 <= expert < num_experts]
            if known:
                pairs_TkH[t, known] = _experts_of_token(x_TH[t : t + 1], [load(ids[slot]) for slot in known])
    else:
        for expert in torch.unique(ids_Tk[known_Tk]).tolist():
            token, slot = (ids_Tk == expert).nonzero(as_tuple=True)
            w1, w2 = load(expert)
            h = _swiglu(functional.linear(x_TH[token], w1)).to(x_TH.dtype)
            pairs_TkH[token, slot] = functional.linear(h, w2).to(torch.float32)
    # Selected and not multiplied by zero: the weight of an unknown id may be anything.
    known_weights_Tk = torch.where(known_Tk, weights_Tk, 0.0)
    total = (pairs_TkH * known_weights_Tk.unsqueeze(-1)).sum(1)
    return total if residual_TH is None else total + residual_TH.to(torch.float32)


def _experts_of_token(x_1H: torch.Tensor, experts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the outputs (n, H) float32 of n experts for one token."""
    h = _swiglu(torch.cat([functional.linear(x_1H, w1) for w1, _ in experts])).to(x_1H.dtype)
    rows = [functional.linear(row, w2) for row, (_, w2) in zip(h.split(1), experts, strict=True)]
    return torch.cat(rows).to(torch.float32)


def _swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.to(torch.float32).chunk(2, dim=-1)
    return functional.silu(gate) * up
