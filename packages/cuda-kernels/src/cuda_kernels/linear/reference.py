"""int4 linear layers in plain torch."""

import torch

from cuda_kernels import int4


def int4_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    """Return x · dequantized(weight)ᵀ + residual, as torch computes it with weights of x's dtype."""
    dequantized = int4.dequantize(weight, scales, dtype=x.dtype)
    out = torch.nn.functional.linear(x, dequantized).to(out_dtype or x.dtype)
    return out if residual is None else residual + out


def int4_linear_int8(
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Return activation · weightᵀ + residual, both dequantized to float32, in `out_dtype`."""
    activation = int4.dequantize_activation(values, scale)
    out = torch.nn.functional.linear(activation, int4.dequantize(weight, scales, dtype=torch.float32))
    return (out if residual is None else out + residual.to(torch.float32)).to(out_dtype)
