"""Launches of the norm kernels."""

import torch
import triton

from cuda_kernels.norm.configs import RUNS, warps
from cuda_kernels.norm.kernels import rms_norm_gated_kernel, rms_norm_int8_kernel, rms_norm_kernel
from cuda_kernels.primitives import has_dependent_launch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool, *, out: torch.Tensor) -> None:
    """Fill `out` with the norm of x."""
    rows, size = x.shape
    if out.numel() == 0:
        return
    pdl = has_dependent_launch(x.device)
    rms_norm_kernel[(rows,)](
        p_x=x,
        p_weight=weight,
        p_out=out,
        eps=eps,
        D=size,
        BLOCK=triton.next_power_of_2(size),
        UNIT_OFFSET=unit_offset,
        PDL=pdl,
        num_warps=warps(size),
        launch_pdl=pdl,
    )


def rms_norm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor) -> None:
    """Fill `out` with the norm of each run of len(weight) columns of x, times weight and silu(gate)."""
    size = weight.shape[0]
    runs = x.numel() // size
    if runs == 0:
        return
    pdl = has_dependent_launch(x.device)
    rms_norm_gated_kernel[(triton.cdiv(runs, RUNS),)](
        p_x=x,
        p_gate=gate,
        p_weight=weight,
        p_out=out,
        runs=runs,
        eps=eps,
        D=size,
        BLOCK=triton.next_power_of_2(size),
        RUNS=RUNS,
        PDL=pdl,
        num_warps=warps(RUNS * size),
        launch_pdl=pdl,
    )


def rms_norm_int8(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    unit_offset: bool,
    group_size: int,
    *,
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
) -> None:
    """Fill values, scale and group_sum with the norm of x, quantized; without a weight, with x itself, quantized."""
    rows, columns = x.shape
    if x.numel() == 0:
        return
    pdl = has_dependent_launch(x.device)
    rms_norm_int8_kernel[(rows,)](
        p_x=x,
        p_weight=weight,
        p_values=values.view(torch.int32),
        p_scale=scale,
        p_group_sum=group_sum,
        eps=eps,
        WORDS=columns // 8,
        # A group is a power of two of words, so the padded row is whole groups too.
        BLOCK_WORDS=triton.next_power_of_2(columns // 8),
        GROUP_WORDS=group_size // 8,
        NORM=weight is not None,
        UNIT_OFFSET=unit_offset,
        PDL=pdl,
        num_warps=warps(columns),
        launch_pdl=pdl,
    )
