"""The three methods of a program, each a module whose `forward` is traced; they share weights and state by name.

B rows of a batch, T tokens of a prompt, V vocabulary.
"""

import torch
from torch import nn

from qwen35_moe.model.decoder import Decoder
from qwen35_moe.model.sampler import TokenHistory


class Prefill(nn.Module):
    """Run T tokens of a prompt at `start` of `slot`; return the logits of the last, (1, V) float32."""

    def __init__(self, decoder: Decoder, history: TokenHistory) -> None:
        super().__init__()
        self.decoder, self.history = decoder, history

    def forward(self, tokens: torch.Tensor, start: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """tokens (T,), start (1,), slot (1,); all int64."""
        torch.ops.cuda_kernels.mark_prompt(tokens, start, slot, self.history.counts)
        return self.decoder.logits(self.decoder.prefill(tokens, start, slot)[-1:])


class Decode(nn.Module):
    """Run one token of each slot at its position; return the logits, (B, V) float32."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """tokens, positions, slots: (B,) int64; slot -1 is padding."""
        return self.decoder.logits(self.decoder.decode(tokens, positions, slots))


class Sample(nn.Module):
    """Choose the next token of each row; ids from `vocab_size` on are never chosen."""

    def __init__(self, history: TokenHistory, vocab_size: int) -> None:
        super().__init__()
        self.history, self.vocab_size = history, vocab_size

    def forward(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        presence_penalty: torch.Tensor,
        frequency_penalty: torch.Tensor,
        repetition_penalty: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """Return tokens (B,) int64; `positions` are those of the chosen tokens and count the random generator."""
        return torch.ops.cuda_kernels.sample_tokens(
            logits, temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty,
            seeds, positions, slots, self.history.counts, self.vocab_size,
        )  # fmt: skip
