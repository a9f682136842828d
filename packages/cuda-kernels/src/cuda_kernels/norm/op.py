"""Operators of the norm family: declarations and public functions."""

import torch

from cuda_kernels.checks import check_tensor
from cuda_kernels.library import Operator
from cuda_kernels.norm import reference
from cuda_kernels.report import KernelCase

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

COMPILE_CASES: tuple[KernelCase, ...] = ()


def _fake_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    check_tensor("rms_norm", "x", x, shape=("T", "D"), dtype=FLOATS)
    check_tensor("rms_norm", "weight", weight, shape=(x.shape[1],), dtype=FLOATS, device=x.device)
    return torch.empty_like(x)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    _fake_rms_norm(x, weight, eps, unit_offset)
    return reference.rms_norm(x, weight, eps, unit_offset)


OPERATORS = (
    Operator(
        schema="rms_norm(Tensor x, Tensor weight, float eps, bool unit_offset) -> Tensor",
        reference=_rms_norm,
        fake=_fake_rms_norm,
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
