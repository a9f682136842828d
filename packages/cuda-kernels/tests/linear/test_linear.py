"""The linear operators against float64, their checks, and both of their registered forms."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.linear.op import int4_linear, int4_linear_int8, quantize_int8
from cuda_kernels.testing import assert_close, check_operator, random_int4, random_tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(0, 8, 64), (1, 8, 64), (3, 33, 192), (17, 64, 320)]


def shape_id(shape: tuple[int, int, int]) -> str:
    return "T{}-N{}-K{}".format(*shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_int4_linear(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
    rows, outputs, columns = shape
    x = random_tensor(rows, columns, dtype=dtype, device=device)
    weight, scales = random_int4(outputs, columns, group_size=64, scale_dtype=dtype, device=device)
    residual = random_tensor(rows, outputs, dtype=dtype, device=device)
    product = x.double() @ int4.dequantize(weight, scales, dtype=dtype).double().T
    assert_close(int4_linear(x, weight, scales), product, dtype)
    assert_close(int4_linear(x, weight, scales, residual=residual), product + residual.double(), dtype)
    assert int4_linear(x, weight, scales, out_dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("group_size", int4.GROUP_SIZES)
@pytest.mark.parametrize("shape", [(0, 8, 128), (1, 8, 128), (3, 33, 384), (9, 16, 640)], ids=shape_id)
def test_int4_linear_int8(shape: tuple[int, int, int], group_size: int, device: torch.device) -> None:
    rows, outputs, columns = shape
    x = random_tensor(rows, columns, device=device)
    weight, scales = random_int4(outputs, columns, group_size=group_size, device=device)
    residual = random_tensor(rows, outputs, device=device)
    quantized = quantize_int8(x, group_size=group_size)
    wide = int4.dequantize(weight, scales, dtype=torch.float64)
    exact = int4.dequantize_activation(quantized.values, quantized.scale).double() @ wide.T
    plain = int4_linear_int8(quantized, weight, scales, out_dtype=torch.float32)
    assert_close(plain, exact, "float32")
    assert_close(plain, x.double() @ wide.T, "int8")
    summed = int4_linear_int8(quantized, weight, scales, out_dtype=torch.float32, residual=residual)
    assert_close(summed, exact + residual.double(), "float32")
    half = int4_linear_int8(quantized, weight, scales, out_dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert_close(half, exact, torch.bfloat16)


@pytest.mark.parametrize("group_size", int4.GROUP_SIZES)
def test_quantize_int8(group_size: int, device: torch.device) -> None:
    x = random_tensor(5, 384, dtype=torch.float32, device=device)
    x[1] = 0.0
    x[2, :group_size] *= 1e6
    x[3] *= 1e-36
    rows = quantize_int8(x, group_size=group_size)
    back = int4.dequantize_activation(rows.values, rows.scale)
    step = rows.scale.repeat_interleave(group_size, dim=1)
    assert bool(((back - x).abs() <= step * 0.5001).all())
    torch.testing.assert_close(rows.group_sum, back.unflatten(-1, (-1, group_size)).sum(-1), rtol=1e-4, atol=1e-3)


def test_operators_pass_opcheck(device: torch.device) -> None:
    x = random_tensor(3, 128, device=device)
    weight, scales = random_int4(16, 128, group_size=32, device=device)
    residual = random_tensor(3, 16, device=device)
    check_operator("quantize_int8", x, 32)
    check_operator("int4_linear", x, weight, scales, residual, None)
    check_operator("int4_linear_int8", *quantize_int8(x, group_size=32), weight, scales, None, torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (3, 64)}, r"int4_linear: weight: expected shape \(N, 32\), got shape \(16, 64\)"),
        ({"scales": (16, 3)}, r"int4_linear: scales: expected 128 columns in groups of \(32, 64, 128\), got 3 groups"),
        ({"scales": (15, 2)}, r"int4_linear: scales: expected shape \(16, G\), got shape \(15, 2\)"),
        ({"residual": (3, 15)}, r"int4_linear: residual: expected shape \(3, 16\), got shape \(3, 15\)"),
    ],
    ids=["columns", "groups", "rows", "residual"],
)
def test_wrong_shapes(change: dict[str, tuple[int, ...]], message: str, device: torch.device) -> None:
    sizes = {"x": (3, 128), "scales": (16, 2), "residual": (3, 16)} | change
    tensors = {name: random_tensor(*size, device=device) for name, size in sizes.items()}
    weight = torch.zeros(16, 64, dtype=torch.uint8, device=device)
    with pytest.raises(ValueError, match=message):
        int4_linear(tensors["x"], weight, tensors["scales"], residual=tensors["residual"])


def test_groups_of_weight_and_activation_must_agree(device: torch.device) -> None:
    weight, scales = random_int4(16, 128, group_size=64, device=device)
    rows = quantize_int8(random_tensor(3, 128, device=device), group_size=32)
    with pytest.raises(ValueError, match=r"int4_linear_int8: scale: expected shape \(3, 2\), got shape \(3, 4\)"):
        int4_linear_int8(rows, weight, scales, out_dtype=torch.float32)
