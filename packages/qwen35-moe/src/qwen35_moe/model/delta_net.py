"""Gated delta net: a short convolution, a recurrent state per value head, a gated norm.

Source: Yang, Kautz and Hatamizadeh, 2024, arXiv:2412.06464.
"""

import torch
from torch import nn

from qwen35_moe.config import ModelConfig
from qwen35_moe.model.weights import Linear, MixedRows, ModelFormat, Norm, parameter, quantize_rows


class DeltaNet(nn.Module):
    """Linear attention; `in_proj` makes q, k, v, the norm's gate z, and the gates b and a in one product.

    conv_state: (slots, value heads, width, 2·key size + value size), state: what each value head has read of late, in a
        ring over positions.
    recurrent_state: (slots, value heads, key size, value size) float32, state.
    """

    def __init__(self, config: ModelConfig, form: ModelFormat, *, slots: int) -> None:
        super().__init__()
        heads, key_size, value_size = (
            config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
        )  # fmt: skip
        self.key_heads = config.linear_num_key_heads
        self.z_columns = slice(config.conv_dim, config.conv_dim + config.value_dim)
        self.eps = config.rms_norm_eps
        self.form = form
        self.in_proj = Linear(config.hidden_size, config.conv_dim + config.value_dim + 2 * heads, form)
        self.conv_weight = parameter(config.conv_dim, config.linear_conv_kernel_dim, dtype=form.dtype)
        self.a_log = parameter(heads, dtype=torch.float32)
        self.dt_bias = parameter(heads, dtype=torch.float32)
        self.norm_weight = parameter(value_size, dtype=form.dtype)
        self.out_proj = Linear(config.value_dim, config.hidden_size, form)
        conv_shape = (slots, heads, config.linear_conv_kernel_dim, 2 * key_size + value_size)
        convolved = torch.zeros(conv_shape, dtype=form.dtype)
        self.register_buffer("conv_state", convolved, persistent=False)
        recurrent = torch.zeros(slots, heads, key_size, value_size, dtype=torch.float32)
        self.register_buffer("recurrent_state", recurrent, persistent=False)
        self.conv_state: torch.Tensor
        self.recurrent_state: torch.Tensor

    def prefill(
        self, hidden_TH: torch.Tensor, norm: Norm, rope: torch.Tensor, start: torch.Tensor, slot: torch.Tensor
    ) -> torch.Tensor:
        """Add to T rows what they, normed, give through the state of `slot`, taken as zero at start 0."""
        weights = (self.conv_weight, self.a_log, self.dt_bias, self.norm_weight)
        state = (self.conv_state, self.recurrent_state)
        mixed = torch.ops.cuda_kernels.gated_delta_net_prefill(
            self.in_proj(norm(hidden_TH)), *weights, *state, start, slot, self.eps, self.key_heads
        )
        return self.out_proj(quantize_rows(mixed, self.form), hidden_TH)

    def decode(
        self, hidden_BH: torch.Tensor, norm: Norm, rope: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> MixedRows:
        """Return what a row of each slot, normed, gives through the slot's state, before the output projection."""
        projection = self.in_proj.behind(norm, hidden_BH)
        weights = (self.conv_weight, self.a_log, self.dt_bias)
        state = (self.conv_state, self.recurrent_state)
        mixed = torch.ops.cuda_kernels.gated_delta_net_decode(
            projection, *weights, *state, positions, slots, self.key_heads
        )
        gate = projection[:, self.z_columns].contiguous()
        return MixedRows(x=mixed, gate=gate, norm_weight=self.norm_weight, eps=self.eps)
