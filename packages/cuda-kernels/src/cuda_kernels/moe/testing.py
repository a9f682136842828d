"""Random expert tables and routings for tests of the mixture of experts."""

import torch

from cuda_kernels.moe import reference
from cuda_kernels.moe.layout import Int4Experts, Routing
from cuda_kernels.testing import random_int4


def table(count: int, hidden: int, width: int, group: int, device: torch.device | str = "cpu") -> Int4Experts:
    """Return `count` random int4 experts."""
    gate_up, gate_up_scales = random_int4(count, 2 * width, hidden, group_size=group, device=device)
    down, down_scales = random_int4(count, hidden, width, group_size=group, device=device)
    return Int4Experts(gate_up=gate_up, gate_up_scales=gate_up_scales, down=down, down_scales=down_scales)


def routing(tokens: int, slots: int, count: int, device: torch.device | str = "cpu") -> Routing:
    """Return random weights and ids; some ids are unknown, their weights NaN."""
    ids = torch.randint(-1, count + 1, (tokens, slots), dtype=torch.int32)
    weights = torch.where((ids >= 0) & (ids < count), torch.rand(tokens, slots), float("nan"))
    return Routing(weights=weights.to(device), ids=ids.to(device))


def expected(x: torch.Tensor, routed: Routing, experts: Int4Experts, residual: torch.Tensor | None) -> torch.Tensor:
    """Return the reference of the dequantized experts in float64."""
    return reference.fused_moe_int4(x.double(), routed, experts, residual)
