"""Operators of the linear family: declarations and public functions."""

import torch

from cuda_kernels import int4
from cuda_kernels.checks import (
    FLOATS,
    check_int8_rows,
    check_tensor,
    checked,
    new_int8_rows,
)
from cuda_kernels.int4 import Int8Rows
from cuda_kernels.library import Operator
from cuda_kernels.linear import cases, launch, norm_op, reference, routed_op
from cuda_kernels.linear.checks import check_weight, new_output


def _fake_quantize_int8(x: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    operator = "quantize_int8"
    check_tensor(operator, "x", x, shape=("T", "K"), dtype=FLOATS)
    return new_int8_rows(operator, x, x.shape[1], group_size)


def _quantize_int8(x: torch.Tensor, group_size: int) -> Int8Rows:
    return int4.quantize_activation(x, group_size=group_size)


def _fake_int4_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    operator = "int4_linear"
    check_tensor(operator, "x", x, shape=("T", "K"), dtype=FLOATS)
    check_weight(operator, weight, scales, x.shape[1], x.device)
    return new_output(operator, x, weight, residual, out_dtype or x.dtype)


def _fake_int4_linear_int8(
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    operator = "int4_linear_int8"
    check_tensor(operator, "values", values, shape=("T", 2, "K/2"), dtype=torch.int8)
    check_weight(operator, weight, scales, 2 * values.shape[2], values.device)
    groups = (values.shape[0], scales.shape[1])
    check_int8_rows(operator, scale, group_sum, shape=groups, device=values.device)
    return new_output(operator, values, weight, residual, out_dtype)


COMPILE_CASES = cases.COMPILE_CASES

OPERATORS = (
    *norm_op.OPERATORS,
    *routed_op.OPERATORS,
    Operator(
        schema="quantize_int8(Tensor x, int group_size) -> (Tensor values, Tensor scale, Tensor group_sum)",
        reference=checked(_fake_quantize_int8, _quantize_int8),
        fake=_fake_quantize_int8,
        cuda=launch.quantize_int8,
    ),
    Operator(
        schema=(
            "int4_linear(Tensor x, Tensor weight, Tensor scales, Tensor? residual, ScalarType? out_dtype) -> Tensor"
        ),
        reference=checked(_fake_int4_linear, reference.int4_linear),
        fake=_fake_int4_linear,
        cuda=launch.int4_linear,
    ),
    Operator(
        schema=(
            "int4_linear_int8(Tensor values, Tensor scale, Tensor group_sum, Tensor weight, Tensor scales, "
            "Tensor? residual, ScalarType out_dtype) -> Tensor"
        ),
        reference=checked(_fake_int4_linear_int8, reference.int4_linear_int8),
        fake=_fake_int4_linear_int8,
        cuda=launch.int4_linear_int8,
    ),
)


def quantize_int8(x: torch.Tensor, *, group_size: int) -> Int8Rows:
    """Return x quantized to int8 per group of `group_size` (32, 64 or 128) elements, nearest even, scale max|x| / 127.

    x: (T, K) float32, bfloat16 or float16, contiguous, K a multiple of `group_size`. Layout: see int4.py.

    Raises ValueError on wrong shape, dtype, strides or group size.
    """
    return Int8Rows(*torch.ops.cuda_kernels.quantize_int8(x, group_size))


def int4_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return x · weightᵀ + residual, the weights dequantized to x's dtype.

    x: (T, K) float32, bfloat16 or float16, contiguous.
    weight: (N, K/2) uint8 and scales: (N, K/group) float, the int4 layout of int4.py; group is 32, 64 or 128.
    residual: (T, N) of the result's dtype, which is `out_dtype`, or x's.

    Raises ValueError on wrong shape, dtype, device or strides.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.int4_linear(x, weight, scales, residual, out_dtype)
    return result


def int4_linear_int8(
    rows: Int8Rows,
    weight: torch.Tensor,
    scales: torch.Tensor,
    *,
    out_dtype: torch.dtype,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return rows · weightᵀ + residual, rounded once to `out_dtype`; the sums of a group are exact integers.

    rows: T rows quantized with the weight's group size. weight, scales, residual: as for `int4_linear`.

    Raises ValueError on wrong shape, dtype, device or strides.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.int4_linear_int8(*rows, weight, scales, residual, out_dtype)
    return result
