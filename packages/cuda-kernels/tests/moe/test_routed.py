"""Routing and experts from logits that have not seen the norm, against the reference in float64."""

from dataclasses import astuple

import pytest
import torch
from cuda_kernels.moe import reference, routed_launch
from cuda_kernels.moe.layout import Int4Experts
from cuda_kernels.moe.testing import table
from cuda_kernels.testing import assert_close, check_operator, poisoned

# tokens, hidden, width, group, experts, top_k, shared experts
SHAPES = {
    "T0-H64-I32-g32": (0, 64, 32, 32, 4, 2, 1),
    "T1-H64-I64-g32": (1, 64, 64, 32, 9, 4, 1),
    "T3-H192-I32-g32": (3, 192, 32, 32, 4, 3, 0),
    "T2-H128-I128-g128": (2, 128, 128, 128, 5, 1, 2),
}


def expected(
    x: torch.Tensor, gain: torch.Tensor, logits: torch.Tensor, experts: Int4Experts, top_k: int, shared: int
) -> torch.Tensor:
    return reference.routed_moe_int4_int8(x, gain, 1e-6, logits, experts, top_k, shared)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_equals_reference(shape: tuple[int, ...], device: torch.device) -> None:
    tokens, hidden, width, group, count, top_k, shared = shape
    experts = table(count + shared, hidden, width, group, device)
    x = 3 * torch.randn(tokens, hidden, device=device)
    gain = 0.2 * torch.randn(hidden, device=device)
    logits = 4 * torch.randn(tokens, count + (1 if shared else 0), device=device)
    out = poisoned((tokens, hidden), torch.float32, device)
    routed_launch.routed_moe_int4_int8(x, gain, 1e-6, logits, experts, top_k, shared, out=out)
    assert_close(out, expected(x, gain, logits, experts, top_k, shared), "int8")


@pytest.mark.parametrize("scale", [0.0, 1.0], ids=["all-equal", "some-equal"])
def test_equal_logits_go_to_the_lower_index(scale: float, device: torch.device) -> None:
    experts, x = table(9, 64, 32, 32, device), torch.randn(2, 64, device=device)
    # The two largest are unlike; of three equal ones behind them only the first is chosen.
    logits = scale * torch.tensor([[5.0, 1, 7, 1, 1, -2, 0, -9, 3], [0, 0, 2, 2, 2, 2, 5, 1, 3]], device=device)
    out = poisoned(tuple(x.shape), torch.float32, device)
    gain = torch.zeros(64, device=device)
    routed_launch.routed_moe_int4_int8(x, gain, 1e-6, logits, experts, 3, 1, out=out)
    assert_close(out, expected(x, gain, logits, experts, 3, 1), "int8")


def test_the_scale_of_a_row_changes_its_weights_and_not_its_experts(device: torch.device) -> None:
    experts, x = table(9, 64, 32, 32, device), torch.randn(1, 64, device=device)
    gain, logits = torch.zeros(64, device=device), torch.randn(1, 9, device=device)
    outs = []
    for factor in (1.0, 8.0):
        out = poisoned((1, 64), torch.float32, device)
        routed_launch.routed_moe_int4_int8(factor * x, gain, 0.0, factor * logits, experts, 2, 1, out=out)
        outs.append(out - factor * x)
    assert_close(outs[1], outs[0], "int8")


def test_operator(device: torch.device) -> None:
    experts, x = table(5, 64, 32, 32, device), torch.randn(2, 64, device=device).bfloat16()
    check_operator("routed_moe_int4_int8", x, torch.randn(64, device=device), 1e-6, torch.randn(2, 5, device=device),
                   *astuple(experts), 2, 1)  # fmt: skip
