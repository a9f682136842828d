"""Mixture of experts: norm, router, routed experts and the shared expert in one table, residual.

E experts, I expert width, H hidden.
"""

import torch
from torch import nn

from qwen35_moe.config import ModelConfig
from qwen35_moe.model import folding
from qwen35_moe.model.weights import ModelFormat, parameter


class Experts(nn.Module):
    """The stacked weights: gate_up (E, 2I, H), gate first, and down (E, H, I); the shared expert is the last of E."""

    def __init__(self, config: ModelConfig, form: ModelFormat) -> None:
        super().__init__()
        experts = config.num_experts + config.shared_experts
        hidden, width = config.hidden_size, config.moe_intermediate_size
        if form.int4 is None:
            self.gate_up = parameter(experts, 2 * width, hidden, dtype=form.dtype)
            self.down = parameter(experts, hidden, width, dtype=form.dtype)
        else:
            group = form.int4.group_size
            self.gate_up = parameter(experts, 2 * width, hidden // 2, dtype=torch.uint8)
            self.gate_up_scales = parameter(experts, 2 * width, hidden // group, dtype=form.dtype)
            self.down = parameter(experts, hidden, width // 2, dtype=torch.uint8)
            self.down_scales = parameter(experts, hidden, width // group, dtype=form.dtype)

    @property
    def int4_weights(self) -> tuple[torch.Tensor, ...]:
        """Return the weights in the order in which the int4 operators take them."""
        return (self.gate_up, self.gate_up_scales, self.down, self.down_scales)


class MoE(nn.Module):
    """hidden + experts(norm(hidden)); `router` is (E + 1, H): the routed experts, then the gate of the shared one.

    folded: (E + 1, H + mixed), with int8 activations: the router multiplied out with the projection before it, which
        has `mixed` inputs; see folding.py.
    """

    def __init__(self, config: ModelConfig, form: ModelFormat, *, mixed: int) -> None:
        super().__init__()
        self.top_k, self.shared = config.num_experts_per_tok, config.shared_experts
        self.eps = config.rms_norm_eps
        self.form = form
        self.norm = parameter(config.hidden_size, dtype=form.dtype)
        self.router = parameter(config.num_experts + 1, config.hidden_size, dtype=form.dtype)
        if form.int8_group_size is not None:
            self.folded = parameter(config.num_experts + 1, config.hidden_size + mixed, dtype=folding.DTYPE)
        self.experts = Experts(config, form)

    def forward(self, hidden_TH: torch.Tensor) -> torch.Tensor:
        """Return the hidden rows with the weighted sum of their experts added."""
        ops, experts = torch.ops.cuda_kernels, self.experts
        group = self.form.int8_group_size
        if group is not None:
            weights, ids, *x8 = ops.rms_norm_router_int8(
                hidden_TH, self.norm, self.eps, self.router, self.top_k, self.shared, group
            )
            return ops.fused_moe_int4_int8(*x8, weights, ids, *experts.int4_weights, hidden_TH, self.form.dtype)
        x_TH = ops.rms_norm(hidden_TH, self.norm, self.eps, True)
        weights, ids = ops.moe_router(x_TH, self.router, self.top_k, self.shared)
        if self.form.int4 is None:
            return ops.fused_moe(x_TH, weights, ids, experts.gate_up, experts.down, hidden_TH)
        return ops.fused_moe_int4(x_TH, weights, ids, *experts.int4_weights, hidden_TH)

    def routed(self, hidden_TH: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return what `forward` does, with int8 activations, from the logits of the folded router."""
        result: torch.Tensor = torch.ops.cuda_kernels.routed_moe_int4_int8(
            hidden_TH, self.norm, self.eps, logits, *self.experts.int4_weights, self.top_k, self.shared
        )
        return result
