"""The sampler's state: which tokens occurred in the prompt and how often in the output of each slot."""

import torch
from torch import nn


class TokenHistory(nn.Module):
    """counts: (slots, V) int32, state; see the operators `mark_prompt` and `sample_tokens`."""

    def __init__(self, slots: int, vocab_size: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(slots, vocab_size, dtype=torch.int32), persistent=False)
        self.counts: torch.Tensor
