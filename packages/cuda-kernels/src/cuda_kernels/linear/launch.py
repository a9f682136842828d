"""Launches of the linear kernels, and the choice between them by the number of tokens."""

from collections.abc import Mapping
from typing import Any

import torch
import triton

from cuda_kernels.linear import configs
from cuda_kernels.linear.dequantize import dequantize_rows_kernel, dequantize_weight_kernel
from cuda_kernels.linear.matmul import matmul_int8_kernel, matmul_kernel
from cuda_kernels.linear.matvec import matvec_int8_kernel, matvec_kernel
from cuda_kernels.norm.launch import rms_norm_int8
from cuda_kernels.primitives import INTERPRETED, has_dependent_launch

# What int8 rows are written out as for a floating-point product; the interpreter computes no bfloat16.
ROW_DTYPE = torch.float32 if INTERPRETED else torch.bfloat16


def quantize_int8(
    x: torch.Tensor, group_size: int, *, values: torch.Tensor, scale: torch.Tensor, group_sum: torch.Tensor
) -> None:
    """Fill values, scale and group_sum with x, quantized."""
    rms_norm_int8(x, None, 0.0, False, group_size, values=values, scale=scale, group_sum=group_sum)


def int4_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` with x · weightᵀ + residual."""
    tokens, outputs = out.shape
    if out.numel() == 0:
        return
    if tokens <= configs.MATVEC_ROWS:
        matvec(x, weight, scales, residual, out)
    elif out.dtype == x.dtype and configs.prefers_library(tokens, outputs, int8=False):
        library_matmul(x, weight, scales, residual, out)
    else:
        matmul(x, weight, scales, residual, out)


def int4_linear_int8(
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` with rows · weightᵀ + residual. Weights are unpacked signed, so group_sum is not needed."""
    (tokens, outputs), columns = out.shape, 2 * values.shape[2]
    group = columns // scale.shape[1]
    if out.numel() == 0:
        return
    if configs.prefers_vector(tokens, outputs):
        matvec_int8(values, scale, weight, scales, residual, out)
    elif group >= 64 and not configs.prefers_library(tokens, outputs, int8=True):
        matmul_int8(values, scale, weight, scales, residual, out)
    else:
        int4_linear(dequantize_rows(values, scale), weight, scales, residual, out_dtype, out=out)


def matvec_int8(
    values: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    strip: configs.Strip | None = None,
) -> None:
    """Launch the vector kernel on int8 rows."""
    tokens, outputs = out.shape
    strip = strip or configs.matvec_strip(tokens, outputs, weight.shape[1] // 4)
    rows = {"p_values": values.view(torch.int32), "p_scale": scale}
    _launch_matvec(matvec_int8_kernel, rows, weight, scales, residual, out, strip)


def matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Launch the vector kernel on floating-point rows."""
    strip = configs.matvec_float_strip(weight.shape[1] // 4)
    _launch_matvec(matvec_kernel, {"p_x": x}, weight, scales, residual, out, strip)


def _launch_matvec(
    kernel: Any,
    rows: Mapping[str, torch.Tensor],
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    strip: configs.Strip,
) -> None:
    tokens, outputs = out.shape
    words, groups = weight.shape[1] // 4, scales.shape[1]
    pdl = has_dependent_launch(weight.device)
    kernel[(triton.cdiv(outputs, strip.block_n),)](
        **rows,
        p_weight=weight.view(torch.int32),
        p_scales=scales,
        p_residual=residual,
        p_out=out,
        rows=tokens,
        N=outputs,
        W=words,
        GROUP=words // groups,
        ROWS=triton.next_power_of_2(tokens),
        BLOCK_N=strip.block_n,
        BLOCK_W=strip.block_words,
        PDL=pdl,
        num_warps=strip.num_warps,
        launch_pdl=pdl,
    )


def matmul_int8(
    values: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    tile: configs.Tile | None = None,
) -> None:
    """Launch the tensor-core kernel on int8 rows; groups of 64 or 128."""
    _launch_matmul(matmul_int8_kernel, {"p_values": values, "p_scale": scale}, weight, scales, residual, out, tile)


def matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    tile: configs.Tile | None = None,
) -> None:
    """Launch the tensor-core kernel on floating-point rows."""
    _launch_matmul(matmul_kernel, {"p_x": x}, weight, scales, residual, out, tile)


def _launch_matmul(
    kernel: Any,
    rows: Mapping[str, torch.Tensor],
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    tile: configs.Tile | None,
) -> None:
    tokens, outputs = out.shape
    columns, groups = 2 * weight.shape[1], scales.shape[1]
    tile = tile or configs.matmul_tile(tokens, outputs)
    pdl = has_dependent_launch(weight.device)
    kernel[(triton.cdiv(tokens, tile.block_t) * triton.cdiv(outputs, tile.block_n),)](
        **rows,
        p_weight=weight,
        p_scales=scales,
        p_residual=residual,
        p_out=out,
        T=tokens,
        N=outputs,
        K=columns,
        GROUP=columns // groups,
        BLOCK_N=tile.block_n,
        BLOCK_T=tile.block_t,
        PDL=pdl,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        launch_pdl=pdl,
    )


def library_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Write the dequantized matrix to a workspace and let the library multiply; `out` has x's dtype."""
    matrix = dequantize_weight(weight, scales, x.dtype)
    if residual is None:
        torch.mm(x, matrix.T, out=out)
    else:
        torch.addmm(residual, x, matrix.T, out=out)


def dequantize_weight(weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix (N, K) in `dtype`."""
    outputs, columns, groups = weight.shape[0], 2 * weight.shape[1], scales.shape[1]
    out = torch.empty((outputs, columns), dtype=dtype, device=weight.device)
    block_n, pdl = 64, has_dependent_launch(weight.device)
    dequantize_weight_kernel[(triton.cdiv(outputs, block_n) * groups,)](
        p_weight=weight,
        p_scales=scales,
        p_out=out,
        N=outputs,
        K=columns,
        GROUP=columns // groups,
        BLOCK_N=block_n,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl,
    )
    return out


def dequantize_rows(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return int8 rows as (T, K) of ROW_DTYPE."""
    tokens, columns, groups = values.shape[0], 2 * values.shape[2], scale.shape[1]
    out = torch.empty((tokens, columns), dtype=ROW_DTYPE, device=values.device)
    block_t, pdl = 32, has_dependent_launch(values.device)
    dequantize_rows_kernel[(triton.cdiv(tokens, block_t) * groups,)](
        p_values=values,
        p_scale=scale,
        p_out=out,
        T=tokens,
        K=columns,
        GROUP=columns // groups,
        BLOCK_T=block_t,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl,
    )
    return out
