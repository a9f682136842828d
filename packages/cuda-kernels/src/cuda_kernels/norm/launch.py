"""Launches of the norm kernels, and the configurations that ship."""

import torch
import triton

from cuda_kernels.norm.kernels import rms_norm_gated_kernel, rms_norm_int8_kernel, rms_norm_kernel
from cuda_kernels.primitives import has_dependent_launch
from cuda_kernels.report import KernelCase

RUNS = 4  # runs of the gated norm a program: a head of 128 elements alone would leave most lanes idle


def warps(elements: int) -> int:
    """Return the warps of a program that holds `elements` of a row: eight elements a lane, one to sixteen warps."""
    return max(1, min(16, triton.next_power_of_2(elements) // 256))


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


_WORDS = {"WORDS": 256, "BLOCK_WORDS": 256, "GROUP_WORDS": 16, "UNIT_OFFSET": True}
_QUANTIZED = {"p_x": "*bf16", "p_values": "*i32", "p_scale": "*fp32", "p_group_sum": "*fp32", "eps": "fp32"}

COMPILE_CASES = (
    KernelCase(
        name="norm.rms_norm/D2048",
        kernel=rms_norm_kernel,
        signature={"p_x": "*bf16", "p_weight": "*bf16", "p_out": "*bf16", "eps": "fp32"},
        constexprs={"D": 2048, "BLOCK": 2048, "UNIT_OFFSET": True},
        num_warps=warps(2048),
    ),
    KernelCase(
        name="norm.rms_norm_gated/D128",
        kernel=rms_norm_gated_kernel,
        signature={
            "p_x": "*bf16",
            "p_gate": "*bf16",
            "p_weight": "*fp32",
            "p_out": "*bf16",
            "runs": "i32",
            "eps": "fp32",
        },
        constexprs={"D": 128, "BLOCK": 128, "RUNS": RUNS},
        num_warps=warps(RUNS * 128),
    ),
    KernelCase(
        name="norm.rms_norm_int8/D2048-g128",
        kernel=rms_norm_int8_kernel,
        signature={**_QUANTIZED, "p_weight": "*bf16"},
        constexprs={**_WORDS, "NORM": True},
        num_warps=warps(2048),
    ),
    KernelCase(
        name="linear.quantize_int8/K2048-g128",
        kernel=rms_norm_int8_kernel,
        signature=_QUANTIZED,
        constexprs={**_WORDS, "p_weight": None, "NORM": False},
        num_warps=warps(2048),
    ),
)
