"""The decode kernels against the reference of the dequantized experts in float64."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.moe.configs import DecodeConfig
from cuda_kernels.moe.decode_launch import launch_decode
from cuda_kernels.moe.testing import expected, routing, table
from cuda_kernels.testing import assert_close, poisoned

SHAPES = {
    "T0-H64-I32-g32-k2": (0, 64, 32, 32, 2, DecodeConfig(gate_up_block=8, down_block=4)),
    "T1-H256-I128-g128-k9": (1, 256, 128, 128, 9, DecodeConfig(gate_up_block=32, down_block=128)),
    "T3-H96-I32-g32-k3": (3, 96, 32, 32, 3, DecodeConfig(gate_up_block=16, down_block=32)),
    "T2-H192-I64-g64-k2": (2, 192, 64, 64, 2, DecodeConfig(gate_up_block=8, down_block=64, down_warps=8)),
}


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "float"])
@pytest.mark.parametrize(("tokens", "hidden", "width", "group", "slots", "config"), SHAPES.values(), ids=SHAPES.keys())
def test_equals_reference(
    tokens: int, hidden: int, width: int, group: int, slots: int, config: DecodeConfig, int8: bool, device: torch.device
) -> None:
    experts, routed = table(5, hidden, width, group, device), routing(tokens, slots, 5, device)
    x = torch.randn(tokens, hidden, device=device)
    residual = torch.randn(tokens, hidden, device=device) if tokens % 2 else None
    out = poisoned((tokens, hidden), torch.float32, device)
    if int8:
        rows = int4.quantize_activation(x, group_size=group)
        launch_decode(rows.values, rows.scale, routed, experts, residual, out, config)
    else:
        launch_decode(x, None, routed, experts, residual, out, config)
    assert_close(out, expected(x, routed, experts, residual), "int8" if int8 else "float32")
