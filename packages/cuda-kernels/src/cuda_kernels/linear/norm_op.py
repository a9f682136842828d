"""Operators of a norm with the int4 product behind it: declarations and public functions."""

import torch

from cuda_kernels import int4
from cuda_kernels.checks import FLOATS, check_gated_norm, check_tensor, checked
from cuda_kernels.library import Operator
from cuda_kernels.linear import norm_launch
from cuda_kernels.linear.checks import check_weight, new_output
from cuda_kernels.linear.reference import int4_linear_int8
from cuda_kernels.norm import reference as norm


def _fake_rms_norm_int4_linear_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    operator = "rms_norm_int4_linear_int8"
    check_tensor(operator, "x", x, shape=("T", "K"), dtype=FLOATS)
    check_tensor(operator, "norm_weight", norm_weight, shape=(x.shape[1],), dtype=FLOATS, device=x.device)
    check_weight(operator, weight, scales, x.shape[1], x.device)
    return new_output(operator, x, weight, None, out_dtype)


def _rms_norm_int4_linear_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    rows = norm.rms_norm_int8(x, norm_weight, eps, True, x.shape[1] // scales.shape[1])
    return int4_linear_int8(*rows, weight, scales, None, out_dtype)


def _fake_rms_norm_gated_int4_linear_int8(
    x: torch.Tensor,
    gate: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    operator = "rms_norm_gated_int4_linear_int8"
    check_tensor(operator, "x", x, shape=("T", "H*D"), dtype=FLOATS)
    check_gated_norm(operator, x, gate, norm_weight, argument="norm_weight")
    check_weight(operator, weight, scales, x.shape[1], x.device)
    return new_output(operator, x, weight, residual, out_dtype)


def _rms_norm_gated_int4_linear_int8(
    x: torch.Tensor,
    gate: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    normed = norm.rms_norm_gated(x.to(torch.float32), gate, norm_weight, eps)
    rows = int4.quantize_activation(normed, group_size=x.shape[1] // scales.shape[1])
    return int4_linear_int8(*rows, weight, scales, residual, out_dtype)


OPERATORS = (
    Operator(
        schema=(
            "rms_norm_int4_linear_int8(Tensor x, Tensor norm_weight, float eps, Tensor weight, Tensor scales, "
            "ScalarType out_dtype) -> Tensor"
        ),
        reference=checked(_fake_rms_norm_int4_linear_int8, _rms_norm_int4_linear_int8),
        fake=_fake_rms_norm_int4_linear_int8,
        cuda=norm_launch.rms_norm_int4_linear_int8,
    ),
    Operator(
        schema=(
            "rms_norm_gated_int4_linear_int8(Tensor x, Tensor gate, Tensor norm_weight, float eps, Tensor weight, "
            "Tensor scales, Tensor? residual, ScalarType out_dtype) -> Tensor"
        ),
        reference=checked(_fake_rms_norm_gated_int4_linear_int8, _rms_norm_gated_int4_linear_int8),
        fake=_fake_rms_norm_gated_int4_linear_int8,
        cuda=norm_launch.rms_norm_gated_int4_linear_int8,
    ),
)


def rms_norm_int4_linear_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    *,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Return `int4_linear_int8` of `rms_norm_int8` of x, the norm with unit offset; one kernel for one row.

    x: (T, K) float32, bfloat16 or float16, contiguous; norm_weight: (K,); weight, scales: as for `int4_linear`.

    Raises ValueError on wrong shape, dtype, device or strides.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.rms_norm_int4_linear_int8(
        x, norm_weight, eps, weight, scales, out_dtype
    )
    return result


def rms_norm_gated_int4_linear_int8(
    x: torch.Tensor,
    gate: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    *,
    out_dtype: torch.dtype,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `int4_linear_int8` of `rms_norm_gated` of x and gate, quantized in between; one kernel for one row.

    x, gate: (T, H·D) float32, bfloat16 or float16, contiguous, normed over each run of D = len(norm_weight) columns.
    weight, scales, residual: as for `int4_linear`.

    Raises ValueError on wrong shape, dtype, device or strides.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.rms_norm_gated_int4_linear_int8(
        x, gate, norm_weight, eps, weight, scales, residual, out_dtype
    )
    return result
