"""The grouped products against the reference in float64: kinds of weights and rows, groups, and skewed routings."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.moe.configs import GroupedConfig, ProductConfig, int8_grouped_config
from cuda_kernels.moe.grouped_launch import launch_grouped
from cuda_kernels.moe.layout import DenseExperts, Int4Experts, Routing
from cuda_kernels.moe.testing import expected, routing, table
from cuda_kernels.testing import assert_close, poisoned


def run(
    kind: str, x: torch.Tensor, routed: Routing, experts: Int4Experts, residual: torch.Tensor | None, rows: int = 64
) -> torch.Tensor:
    config = GroupedConfig(
        pair_block=16,
        gate_up=ProductConfig(rows=rows, warps=4, stages=2),
        down=ProductConfig(rows=128, warps=4, stages=2),
    )
    values, scale = x, None
    weights: Int4Experts | DenseExperts = experts
    if kind == "int8":
        group = x.shape[1] // experts.gate_up_scales.shape[2]
        values, scale, _ = int4.quantize_activation(x, group_size=group)
    if kind == "dense":
        weights = DenseExperts(
            gate_up=int4.dequantize(experts.gate_up, experts.gate_up_scales, dtype=x.dtype),
            down=int4.dequantize(experts.down, experts.down_scales, dtype=x.dtype),
        )
    out = poisoned(x.shape, torch.float32, x.device)
    launch_grouped(values, scale, routed, weights, residual, out, config)
    return out


def arithmetic(kind: str) -> str:
    return "int8" if kind == "int8" else "float32"


@pytest.mark.parametrize(
    ("kind", "hidden", "width", "group", "rows"),
    [
        ("int8", 128, 64, 64, 64),
        ("int8", 256, 128, 128, 128),
        ("int4", 96, 32, 32, 32),
        ("int4", 256, 128, 128, 64),
        ("dense", 64, 32, 32, 32),
    ],
    ids=["int8-H128-I64-g64", "int8-H256-I128-g128", "int4-H96-I32-g32", "int4-H256-I128-g128", "dense-H64-I32"],
)
def test_equals_reference(kind: str, hidden: int, width: int, group: int, rows: int, device: torch.device) -> None:
    experts, routed = table(3, hidden, width, group, device), routing(9, 2, 3, device)
    x, residual = torch.randn(9, hidden, device=device), torch.randn(9, hidden, device=device)
    out = run(kind, x, routed, experts, residual, rows)
    assert_close(out, expected(x, routed, experts, residual), arithmetic(kind))


@pytest.mark.parametrize("draw", range(3), ids="draw{}".format)
def test_any_token_count(draw: int, device: torch.device) -> None:
    tokens = int(torch.randint(1, 131, ()))
    experts, routed, x = table(4, 64, 64, 64, device), routing(tokens, 1, 4, device), torch.randn(tokens, 64)
    out = run("int8", x.to(device), routed, experts, None)
    assert_close(out, expected(x.to(device), routed, experts, None), "int8")


@pytest.mark.parametrize("expert", [0, 4, -1, 5], ids=["first", "last", "none", "past-the-end"])
def test_all_tokens_to_one_expert(expert: int, device: torch.device) -> None:
    experts, x = table(5, 64, 64, 64, device), torch.randn(20, 64, device=device)
    ids = torch.full((20, 1), expert, dtype=torch.int32, device=device)
    routed = Routing(weights=torch.rand(20, 1, device=device), ids=ids)
    assert_close(run("int8", x, routed, experts, x), expected(x, routed, experts, x), "int8")


def test_no_tokens(device: torch.device) -> None:
    experts, routed = table(2, 64, 64, 64, device), routing(0, 2, 2, device)
    assert run("int8", torch.randn(0, 64, device=device), routed, experts, None).shape == (0, 64)


def test_a_row_agrees_with_itself_in_a_batch(device: torch.device) -> None:
    experts, routed, x = table(3, 64, 64, 64, device), routing(33, 1, 3, device), torch.randn(33, 64, device=device)
    batch = run("int8", x, routed, experts, None)
    for t in (0, 17, 32):
        alone = Routing(weights=routed.weights[t : t + 1].clone(), ids=routed.ids[t : t + 1].clone())
        assert torch.equal(run("int8", x[t : t + 1].clone(), alone, experts, None)[0], batch[t])


@pytest.mark.parametrize("group", [64, 128])
@pytest.mark.parametrize("width", [64, 128, 384, 512])
def test_elements_that_share_a_scale_lie_in_one_group(width: int, group: int) -> None:
    rows = int8_grouped_config(900, 9, width, group).gate_up.rows
    assert group % rows == 0
    assert width % rows == 0
