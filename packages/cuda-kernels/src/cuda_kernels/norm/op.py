"""Operators of the norm family: declarations and public functions."""

import torch

from cuda_kernels.checks import FLOATS, check_gated_norm, check_tensor, checked, new_int8_rows
from cuda_kernels.int4 import Int8Rows
from cuda_kernels.library import Operator
from cuda_kernels.norm import cases, launch, reference


def _fake_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    check_tensor("rms_norm", "x", x, shape=("T", "D"), dtype=FLOATS)
    check_tensor("rms_norm", "weight", weight, shape=(x.shape[1],), dtype=FLOATS, device=x.device)
    return torch.empty_like(x)


def _fake_rms_norm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    operator = "rms_norm_gated"
    check_tensor(operator, "x", x, shape=("T", "Hv*D"), dtype=FLOATS)
    check_gated_norm(operator, x, gate, weight, argument="weight")
    return torch.empty_like(x)


def _fake_rms_norm_int8(
    x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool, group_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    operator = "rms_norm_int8"
    check_tensor(operator, "x", x, shape=("T", "D"), dtype=FLOATS)
    check_tensor(operator, "weight", weight, shape=(x.shape[1],), dtype=FLOATS, device=x.device)
    return new_int8_rows(operator, x, x.shape[1], group_size)


COMPILE_CASES = cases.COMPILE_CASES

OPERATORS = (
    Operator(
        schema="rms_norm(Tensor x, Tensor weight, float eps, bool unit_offset) -> Tensor",
        reference=checked(_fake_rms_norm, reference.rms_norm),
        fake=_fake_rms_norm,
        cuda=launch.rms_norm,
    ),
    Operator(
        schema="rms_norm_gated(Tensor x, Tensor gate, Tensor weight, float eps) -> Tensor",
        reference=checked(_fake_rms_norm_gated, reference.rms_norm_gated),
        fake=_fake_rms_norm_gated,
        cuda=launch.rms_norm_gated,
    ),
    Operator(
        schema=(
            "rms_norm_int8(Tensor x, Tensor weight, float eps, bool unit_offset, int group_size) "
            "-> (Tensor values, Tensor scale, Tensor group_sum)"
        ),
        reference=checked(_fake_rms_norm_int8, reference.rms_norm_int8),
        fake=_fake_rms_norm_int8,
        cuda=launch.rms_norm_int8,
    ),
)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, unit_offset: bool = True) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · (1 + weight), in float32, rounded once to x's dtype.

    x: (T, D) float32, bfloat16 or float16, contiguous.
    weight: (D,) of any of these dtypes; used as it is, without the 1, where `unit_offset` is False.

    Raises ValueError on wrong shape, dtype, device or strides. Source: Zhang and Sennrich, 2019, arXiv:1910.07467.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.rms_norm(x, weight, eps, unit_offset)
    return result


def rms_norm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight · silu(gate), the mean over each run of D = len(weight) columns.

    x, gate: (T, Hv·D) float32, bfloat16 or float16, contiguous; the result has x's dtype.
    weight: (D,) of any of these dtypes.

    Raises ValueError on wrong shape, dtype, device or strides.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.rms_norm_gated(x, gate, weight, eps)
    return result


def rms_norm_int8(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, group_size: int, unit_offset: bool = True
) -> Int8Rows:
    """Return `rms_norm` quantized to int8 per group (see int4.py), without rounding to x's dtype in between.

    x: (T, D) float32, bfloat16 or float16, contiguous, D a multiple of `group_size` (32, 64 or 128).
    weight: (D,) of any of these dtypes.

    Raises ValueError on wrong shape, dtype, device, strides or group size.
    """
    return Int8Rows(*torch.ops.cuda_kernels.rms_norm_int8(x, weight, eps, unit_offset, group_size))
