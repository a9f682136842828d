"""Argument checks that the operators of the family share."""

import torch

from cuda_kernels.checks import FLOATS, check, check_scales, check_tensor


def check_weight(operator: str, weight: torch.Tensor, scales: torch.Tensor, columns: int, device: torch.device) -> None:
    """Check an int4 matrix (N, columns) and its scales."""
    check_tensor(operator, "weight", weight, shape=("N", columns // 2), dtype=torch.uint8, device=device)
    check_scales(operator, "scales", scales, rows=(weight.shape[0],), columns=columns, device=device)


def new_output(
    operator: str, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """Check `out_dtype` and the residual; return the uninitialized product (T, N) of rows x."""
    check(out_dtype in FLOATS, operator, "out_dtype", f"one of {FLOATS}", out_dtype)
    out = x.new_empty((x.shape[0], weight.shape[0]), dtype=out_dtype)
    if residual is not None:
        check_tensor(operator, "residual", residual, shape=out.shape, dtype=out_dtype, device=x.device)
    return out
