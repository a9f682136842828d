"""The reference of the expert products against a loop over tokens and slots in float64."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.moe import reference
from cuda_kernels.moe.layout import Int4Experts, Routing
from cuda_kernels.moe.op import fused_moe, fused_moe_int4, fused_moe_int4_int8
from cuda_kernels.moe.testing import routing, table
from cuda_kernels.testing import assert_close


def loop(x: torch.Tensor, routed: Routing, experts: Int4Experts, residual: torch.Tensor | None) -> torch.Tensor:
    """Return the sum over slots, one pair at a time, in float64."""
    w1 = int4.dequantize(experts.gate_up, experts.gate_up_scales, dtype=torch.float64)
    w2 = int4.dequantize(experts.down, experts.down_scales, dtype=torch.float64)
    out = torch.zeros(x.shape, dtype=torch.float64) if residual is None else residual.to(torch.float64)
    for t in range(x.shape[0]):
        for weight, e in zip(routed.weights[t], routed.ids[t], strict=True):
            if 0 <= e < w1.shape[0]:
                gate, up = (w1[e] @ x[t].to(torch.float64)).chunk(2)
                out[t] += weight.to(torch.float64) * (w2[e] @ (torch.nn.functional.silu(gate) * up))
    return out


@pytest.mark.parametrize("group", [32, 64, 128], ids="group{}".format)
@pytest.mark.parametrize("tokens", [0, 1, 5, 16, 17, 40], ids="T{}".format)
def test_equals_loop(tokens: int, group: int) -> None:
    experts, routed, x = table(6, 256, 128, group), routing(tokens, 3, 6), torch.randn(tokens, 256)
    residual = torch.randn(tokens, 256) if tokens % 2 else None
    assert_close(fused_moe_int4(x, routed, experts, residual), loop(x, routed, experts, residual), "float32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [1, 19], ids="T{}".format)
def test_int4_equals_dense_bitwise(tokens: int, dtype: torch.dtype) -> None:
    experts, routed = table(4, 128, 64, 32), routing(tokens, 2, 4)
    x = torch.randn(tokens, 128).to(dtype)
    w1 = int4.dequantize(experts.gate_up, experts.gate_up_scales, dtype=dtype)
    w2 = int4.dequantize(experts.down, experts.down_scales, dtype=dtype)
    assert torch.equal(fused_moe_int4(x, routed, experts, x), fused_moe(x, routed, w1, w2, x))


@pytest.mark.parametrize("tokens", [1, 20], ids="T{}".format)
def test_int8_rows_equal_their_dequantized_values(tokens: int) -> None:
    experts, routed = table(4, 256, 128, 64), routing(tokens, 2, 4)
    rows = int4.quantize_activation(torch.randn(tokens, 256), group_size=64)
    x = int4.dequantize_activation(rows.values, rows.scale)
    result = fused_moe_int4_int8(rows, routed, experts, x, out_dtype=torch.float32)
    assert torch.equal(result, fused_moe_int4(x, routed, experts, x))


def test_a_row_has_the_same_bits_in_any_small_batch() -> None:
    experts, routed, x = table(6, 128, 64, 32), routing(16, 3, 6), torch.randn(16, 128)
    batch = reference.fused_moe_int4(x, routed, experts, None)
    for t in range(16):
        row = Routing(weights=routed.weights[t : t + 1].clone(), ids=routed.ids[t : t + 1].clone())
        assert torch.equal(fused_moe_int4(x[t : t + 1].clone(), row, experts)[0], batch[t])
