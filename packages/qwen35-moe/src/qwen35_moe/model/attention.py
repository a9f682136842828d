"""Full attention: queries with an output gate over a slotted cache of normed, rotated keys and of values."""

import torch
from torch import nn

from qwen35_moe.config import ModelConfig
from qwen35_moe.model.weights import Int8Rows, Linear, ModelFormat, Rows, parameter, quantize_rows


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

    def prefill(self, x: Rows, rope: torch.Tensor, start: torch.Tensor, slot: torch.Tensor) -> Rows:
        """Attend from T tokens at `start` of `slot` to all tokens up to each; return the rows for `out_proj`."""
        qkv = self.in_proj(x)
        state = (self.k_cache, self.v_cache, start, slot, self.eps)
        mixed = torch.ops.cuda_kernels.attention_prefill(qkv, self.q_norm, self.k_norm, rope, *state)
        return quantize_rows(mixed, self.form)

    def decode(self, x: Rows, rope: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> Rows:
        """Attend from one token of each slot; return the rows for `out_proj`."""
        ops = torch.ops.cuda_kernels
        inputs = (self.in_proj(x), self.q_norm, self.k_norm, rope)
        state = (self.k_cache, self.v_cache, positions, slots, self.eps)
        if self.form.int8_group_size is None:
            return ops.attention_decode(*inputs, *state)
        return Int8Rows(*ops.attention_decode_int8(*inputs, *state, self.form.int8_group_size))
