"""Launches of a norm and the product behind it: one kernel for one row, the kernels of either family for more."""

from typing import Any

import torch
import triton

from cuda_kernels.checks import new_int8_rows
from cuda_kernels.linear import configs
from cuda_kernels.linear.launch import int4_linear_int8, quantize_int8
from cuda_kernels.linear.norm_matvec import norm_matvec_kernel
from cuda_kernels.norm.launch import rms_norm_gated, rms_norm_int8
from cuda_kernels.primitives import has_dependent_launch


def rms_norm_int4_linear_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` with the product of the normed rows."""
    if configs.prefers_joined_norm(out.shape[0], out.shape[1], weight.shape[1] // 4):
        norm_matvec(x, None, norm_weight, eps, weight, scales, None, out)
        return
    group = x.shape[1] // scales.shape[1]
    values, scale, group_sum = new_int8_rows("rms_norm_int4_linear_int8", x, x.shape[1], group)
    rms_norm_int8(x, norm_weight, eps, True, group, values=values, scale=scale, group_sum=group_sum)
    int4_linear_int8(values, scale, group_sum, weight, scales, None, out_dtype, out=out)


def rms_norm_gated_int4_linear_int8(
    x: torch.Tensor,
    gate: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` with the product of the normed and gated rows, plus the residual."""
    joined = configs.prefers_joined_norm(out.shape[0], out.shape[1], weight.shape[1] // 4)
    if joined and is_power_of_two_run(norm_weight):
        norm_matvec(x, gate, norm_weight, eps, weight, scales, residual, out)
        return
    normed = gated_rows(x, gate, norm_weight, eps)
    multiply_rows("rms_norm_gated_int4_linear_int8", normed, weight, scales, residual, out)


def gated_rows(x: torch.Tensor, gate: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the normed and gated rows in float32."""
    normed = torch.empty_like(x, dtype=torch.float32)
    rms_norm_gated(x, gate, norm_weight, eps, out=normed)
    return normed


def multiply_rows(
    operator: str,
    rows: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Quantize rows (T, K) of floats and fill `out` with their product, plus the residual."""
    group = rows.shape[1] // scales.shape[1]
    values, scale, group_sum = new_int8_rows(operator, rows, rows.shape[1], group)
    quantize_int8(rows, group, values=values, scale=scale, group_sum=group_sum)
    int4_linear_int8(values, scale, group_sum, weight, scales, residual, out.dtype, out=out)


def is_power_of_two_run(norm_weight: torch.Tensor) -> bool:
    """Return whether the kernel of one row can norm runs of len(norm_weight) columns."""
    words, rest = divmod(norm_weight.shape[0], 8)
    return rest == 0 and words > 0 and words & (words - 1) == 0


def norm_matvec(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    strip: configs.Strip | None = None,
) -> None:
    """Launch the kernel of one row; with a gate the norm is over each run of len(norm_weight) columns."""
    outputs = out.shape[1]
    if outputs == 0:
        return
    strip = strip or configs.norm_strip(outputs, weight.shape[1] // 4)
    norm_matvec_kernel[(triton.cdiv(outputs, strip.block_n),)](
        **strip_arguments(x, gate, norm_weight, eps, weight, scales, residual, out, strip)
    )


def strip_arguments(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    strip: configs.Strip,
) -> dict[str, Any]:
    """Return the arguments of `normed_strip`, and those of its launch, for one row."""
    words, pdl = weight.shape[1] // 4, has_dependent_launch(weight.device)
    return {
        "p_x": x,
        "p_gate": gate,
        "p_norm": norm_weight,
        "p_weight": weight.view(torch.int32),
        "p_scales": scales,
        "p_residual": residual,
        "p_out": out,
        "eps": eps,
        "N": out.shape[1],
        "W": words,
        "RUN": words if norm_weight is None else norm_weight.shape[0] // 8,
        "GROUP": words // scales.shape[1],
        "BLOCK_N": strip.block_n,
        "BLOCK_W": strip.block_words,
        "PDL": pdl,
        "num_warps": strip.num_warps,
        "launch_pdl": pdl,
    }
