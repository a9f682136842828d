"""The decode kernels against the reference of the dequantized experts in float64."""

from dataclasses import astuple

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.moe import reference
from cuda_kernels.moe.configs import DecodeConfig
from cuda_kernels.moe.launch import launch_decode
from cuda_kernels.moe.types import Int4Experts
from cuda_kernels.testing import assert_close, poisoned, random_int4


def table(count: int, hidden: int, width: int, group: int, device: torch.device) -> Int4Experts:
    gate_up, gate_up_scales = random_int4(count, 2 * width, hidden, group_size=group, device=device)
    down, down_scales = random_int4(count, hidden, width, group_size=group, device=device)
    return Int4Experts(gate_up=gate_up, gate_up_scales=gate_up_scales, down=down, down_scales=down_scales)


def routing(tokens: int, slots: int, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random weights and ids; some ids are unknown, their weights NaN."""
    ids = torch.randint(-1, count + 1, (tokens, slots), dtype=torch.int32)
    weights = torch.where((ids >= 0) & (ids < count), torch.rand(tokens, slots), float("nan"))
    return weights.to(device), ids.to(device)


CONFIGS = [
    DecodeConfig(gate_up_block=8, down_block=4),
    DecodeConfig(gate_up_block=16, down_block=8, down_warps=8),
    DecodeConfig(gate_up_block=32, down_block=16, gate_up_warps=8),
]


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "float"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"block{c.gate_up_block}-{c.down_block}")
@pytest.mark.parametrize(
    ("tokens", "hidden", "width", "group", "slots"),
    [(0, 64, 32, 32, 2), (1, 256, 128, 128, 9), (3, 96, 32, 32, 4), (2, 192, 64, 64, 5)],
    ids=["T0", "T1-H256-I128-g128-k9", "T3-H96-I32-g32-k4", "T2-H192-I64-g64-k5"],
)
def test_equals_reference(
    tokens: int, hidden: int, width: int, group: int, slots: int, config: DecodeConfig, int8: bool, device: torch.device
) -> None:
    experts = table(5, hidden, width, group, device)
    weights, ids = routing(tokens, slots, 5, device)
    x = torch.randn(tokens, hidden, device=device)
    residual = torch.randn(tokens, hidden, device=device) if tokens % 2 else None
    out = poisoned((tokens, hidden), torch.float32, device)
    expected = reference.fused_moe_int4(x.double(), weights, ids, *astuple(experts), residual)
    if int8:
        values, scale, _ = int4.quantize_activation(x, group_size=group)
        launch_decode(values, scale, weights, ids, experts, residual, out, config)
    else:
        launch_decode(x, None, weights, ids, experts, residual, out, config)
    assert_close(out, expected, "int8" if int8 else "float32")
