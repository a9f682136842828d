"""Full attention: queries with an output gate over a slotted cache of normed, rotated keys and of values."""

import torch
from torch import nn

from qwen35_moe.config import ModelConfig
from qwen35_moe.model.weights import Linear, MixedRows, ModelFormat, Norm, parameter, quantize_rows


class Attention(nn.Module):
    """Grouped-query attention; `in_proj` makes queries with gates, keys and values in one product.

    k_cache, v_cache: (slots, key-value heads, context, head size), state.
    """

    def __init__(self, config: ModelConfig, form: ModelFormat, *, slots: int, context: int) -> None:
        super().__init__()
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.eps = config.rms_norm_eps
        self.form = form
        self.in_proj = Linear(config.hidden_size, (2 * heads + 2 * kv_heads) * size, form)
        self.q_norm = parameter(size, dtype=form.dtype)
        self.k_norm = parameter(size, dtype=form.dtype)
        self.out_proj = Linear(heads * size, config.hidden_size, form)
        for name in ("k_cache", "v_cache"):
            cache = torch.zeros(slots, kv_heads, context, size, dtype=form.dtype)
            self.register_buffer(name, cache, persistent=False)
        self.k_cache: torch.Tensor
        self.v_cache: torch.Tensor

    def prefill(
        self, hidden_TH: torch.Tensor, norm: Norm, rope: torch.Tensor, start: torch.Tensor, slot: torch.Tensor
    ) -> torch.Tensor:
        """Add to T rows at `start` of `slot` what they, normed, attend to: all tokens up to each."""
        qkv = self.in_proj(norm(hidden_TH))
        state = (self.k_cache, self.v_cache, start, slot, self.eps)
        mixed = torch.ops.cuda_kernels.attention_prefill(qkv, self.q_norm, self.k_norm, rope, *state)
        return self.out_proj(quantize_rows(mixed, self.form), hidden_TH)

    def decode(
        self, hidden_BH: torch.Tensor, norm: Norm, rope: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> MixedRows:
        """Return what a row of each slot, normed, attends to, before the output projection."""
        inputs = (self.in_proj.behind(norm, hidden_BH), self.q_norm, self.k_norm, rope)
        state = (self.k_cache, self.v_cache, positions, slots, self.eps)
        return MixedRows(x=torch.ops.cuda_kernels.attention_decode(*inputs, *state))
