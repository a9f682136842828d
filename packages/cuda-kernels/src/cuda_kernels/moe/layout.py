"""Tensors that belong together: a routing, and a table of experts; and what the rows of a router are."""

from dataclasses import dataclass

import torch


def routed_experts(rows: int, shared_experts: int) -> int:
    """Return how many of a router's `rows` are routed experts: the last gates the shared ones, where there are any."""
    return rows - (1 if shared_experts else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Hold the experts of each token: weights (T, k) float32 and ids (T, k) int32."""

    weights: torch.Tensor
    ids: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Experts:
    """Hold an int4 expert table in the weight layout of `cuda_kernels.int4`.

    gate_up: (E, 2I, H/2) uint8, gate rows first, with gate_up_scales (E, 2I, H/group);
    down: (E, H, I/2) uint8 with down_scales (E, H, I/group). Scales are bfloat16, float16 or float32.
    """

    gate_up: torch.Tensor
    gate_up_scales: torch.Tensor
    down: torch.Tensor
    down_scales: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseExperts:
    """Hold an expert table of floats: gate_up (E, 2I, H), gate rows first, and down (E, H, I)."""

    gate_up: torch.Tensor
    down: torch.Tensor
