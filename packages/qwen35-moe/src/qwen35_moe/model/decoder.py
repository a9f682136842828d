"""The decoder: embedding, layers, norm and output head, over the slotted state of its layers.

T tokens of one sequence, B rows of a batch, H hidden, V vocabulary.
"""

from collections.abc import Iterator
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from qwen35_moe.config import ModelConfig
from qwen35_moe.model.attention import Attention
from qwen35_moe.model.delta_net import DeltaNet
from qwen35_moe.model.moe import MoE
from qwen35_moe.model.weights import Linear, ModelFormat, Norm, parameter


class Layer(nn.Module):
    """One layer: norm, mixer and residual, then the mixture of experts with its own."""

    def __init__(self, config: ModelConfig, form: ModelFormat, kind: str, *, slots: int, context: int) -> None:
        super().__init__()
        self.norm = Norm(config.hidden_size, config.rms_norm_eps, form)
        self.mixer: Attention | DeltaNet = (
            Attention(config, form, slots=slots, context=context)
            if kind == "full_attention"
            else DeltaNet(config, form, slots=slots)
        )
        self.moe = MoE(config, form, mixed=self.mixer.out_proj.inputs)
        self.form = form

    def prefill(self, hidden_TH: torch.Tensor, *where: torch.Tensor) -> torch.Tensor:
        """Run T tokens of one slot; `where` is the rope table, start and slot."""
        result: torch.Tensor = self.moe(self.mixer.prefill(hidden_TH, self.norm, *where))
        return result

    def decode(self, hidden_BH: torch.Tensor, *where: torch.Tensor) -> torch.Tensor:
        """Run one token of each slot; `where` is the rope table, positions and slots."""
        mixed, project = self.mixer.decode(hidden_BH, self.norm, *where), self.mixer.out_proj
        if self.form.int8_group_size is None:
            result: torch.Tensor = self.moe(project(mixed.normed(), hidden_BH))
            return result
        return self.moe.routed(*project.with_logits(mixed, hidden_BH, self.moe.folded))


class Decoder(nn.Module):
    """The text model with state for `slots` sequences of up to `context` tokens."""

    def __init__(self, config: ModelConfig, form: ModelFormat, *, slots: int, context: int) -> None:
        super().__init__()
        self.config, self.form, self.slots, self.context = config, form, slots, context
        self.embedding = parameter(config.vocab_size, config.hidden_size, dtype=form.dtype)
        self.rope = parameter(context, config.rotary_dim, dtype=torch.float32)
        self.layers = nn.ModuleList(
            Layer(config, form, kind, slots=slots, context=context) for kind in config.layer_types
        )
        self.norm = Norm(config.hidden_size, config.rms_norm_eps, form)
        self.head = Linear(config.hidden_size, config.vocab_size, form, out_dtype=torch.float32)

    def prefill(self, tokens_T: torch.Tensor, start: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """Return the hidden rows (T, H) of tokens at `start` of `slot`, before the last norm."""
        hidden_TH = functional.embedding(tokens_T, self.embedding)
        for layer in self._each_layer():
            hidden_TH = layer.prefill(hidden_TH, self.rope, start, slot)
        return hidden_TH

    def decode(self, tokens_B: torch.Tensor, positions_B: torch.Tensor, slots_B: torch.Tensor) -> torch.Tensor:
        """Return the hidden rows (B, H) of one token of each slot, before the last norm."""
        hidden_BH = functional.embedding(tokens_B, self.embedding)
        for layer in self._each_layer():
            hidden_BH = layer.decode(hidden_BH, self.rope, positions_B, slots_B)
        return hidden_BH

    def logits(self, hidden_TH: torch.Tensor) -> torch.Tensor:
        """Return the logits (T, V) float32 of hidden rows."""
        result: torch.Tensor = self.head(self.norm(hidden_TH))
        return result

    def _each_layer(self) -> Iterator[Layer]:
        return cast("Iterator[Layer]", iter(self.layers))
