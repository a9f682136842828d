"""The sampling parameters of a batch."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Sampling parameters of a batch, (B,) each on the device of the logits: float32, top_k int64.

    temperature 0 and top_k 1 are the exact argmax, the lower id on ties; top_k ≤ 0 or ≥ V, top_p ≥ 1, min_p ≤ 0 are
    off; penalties are off at 0, 0 and 1.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    presence_penalty: torch.Tensor
    frequency_penalty: torch.Tensor
    repetition_penalty: torch.Tensor
