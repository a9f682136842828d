"""The operators as torch sees them: opcheck, refusals, and a layer of them compiled in one graph."""

from dataclasses import astuple

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.moe.layout import Int4Experts, Routing
from cuda_kernels.moe.op import fused_moe, fused_moe_int4, fused_moe_int4_int8
from cuda_kernels.moe.routing_op import moe_align_block_size, moe_router, rms_norm_router_int8
from cuda_kernels.moe.testing import routing, table
from cuda_kernels.testing import assert_close, check_operator


@pytest.mark.parametrize("tokens", [0, 2], ids="T{}".format)
def test_operators(tokens: int, device: torch.device) -> None:
    experts, routed = table(3, 64, 64, 32, device), routing(tokens, 2, 3, device)
    x, router = torch.randn(tokens, 64, device=device), torch.randn(4, 64, device=device)
    rows = int4.quantize_activation(x, group_size=32)
    dense = torch.randn(3, 128, 64, device=device), torch.randn(3, 64, 64, device=device)
    weights = routed.weights.nan_to_num()
    check_operator("moe_router", x, router, 2, 1)
    check_operator("rms_norm_router_int8", x, torch.randn(64, device=device), 1e-6, router, 2, 1, 32)
    check_operator("moe_align_block_size", routed.ids, 16, 3)
    check_operator("fused_moe", x, weights, routed.ids, *dense, None)
    check_operator("fused_moe_int4", x, weights, routed.ids, *astuple(experts), x)
    check_operator("fused_moe_int4_int8", *rows, weights, routed.ids, *astuple(experts), None, torch.bfloat16)


def test_layer_compiles_whole(device: torch.device) -> None:
    experts, router, gain = table(5, 64, 64, 32, device), torch.randn(5, 64, device=device), torch.randn(64).to(device)

    def layer(x: torch.Tensor) -> torch.Tensor:
        routed, rows = rms_norm_router_int8(x, gain, 1e-6, router, top_k=2, shared_experts=1, group_size=32)
        return fused_moe_int4_int8(rows, routed, experts, x, out_dtype=torch.float32) * 2

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (2, 3, 5):
        x = torch.randn(tokens, 64, device=device)
        assert_close(compiled(x), layer(x), "float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.randn(2, 32)}, "gate_up: expected shape"),
        ({"x": torch.randn(64, 2).T}, "x: expected a contiguous tensor"),
        ({"ids": torch.zeros(2, 2, dtype=torch.int64)}, "ids: expected dtype torch.int32"),
        ({"ids": torch.zeros(2, 3, dtype=torch.int32)}, r"ids: expected shape \(2, 2\)"),
        ({"residual": torch.zeros(2, 64, dtype=torch.float16)}, "residual: expected dtype torch.float32"),
        ({"down_scales": torch.ones(3, 64, 1)}, "down_scales: expected groups of 32, as gate_up has, got 64"),
        ({"down_scales": torch.ones(3, 64, 3)}, "down_scales: expected 64 columns in groups"),
    ],
    ids=["hidden", "strides", "ids-dtype", "ids-shape", "residual", "group", "groups"],
)
def test_refuses(change: dict[str, torch.Tensor], message: str) -> None:
    experts = table(3, 64, 64, 32)
    x = change.get("x", torch.randn(2, 64))
    routed = Routing(weights=torch.rand(2, 2), ids=change.get("ids", torch.zeros(2, 2, dtype=torch.int32)))
    experts = Int4Experts(
        gate_up=experts.gate_up,
        gate_up_scales=experts.gate_up_scales,
        down=experts.down,
        down_scales=change.get("down_scales", experts.down_scales),
    )
    with pytest.raises(ValueError, match=f"fused_moe_int4: {message}"):
        fused_moe_int4(x, routed, experts, change.get("residual"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: moe_router(torch.ones(1, 8), torch.ones(4, 8), top_k=5), r"top_k: expected .* \[1, 4\], got 5"),
        (lambda: moe_router(torch.ones(1, 8), torch.ones(4, 9), top_k=1), "weight: expected shape"),
        (
            lambda: rms_norm_router_int8(
                torch.ones(1, 48), torch.ones(48), 1e-6, torch.ones(4, 48), top_k=1, shared_experts=0, group_size=32
            ),
            "group_size: expected a divisor of 48 columns, got 32",
        ),
        (
            lambda: moe_align_block_size(torch.zeros(1, 1, dtype=torch.int32), block_size=0, num_experts=1),
            "block_size: expected at least 1",
        ),
        (
            lambda: fused_moe(torch.ones(1, 8), routing(1, 1, 1), torch.ones(2, 3, 8), torch.ones(2, 8, 1)),
            "gate_up: expected an even number of rows, got 3",
        ),
    ],
    ids=["top-k", "router-columns", "group", "block", "odd-rows"],
)
def test_other_refusals(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
