"""Fills the outputs of the expert products: the choice by token count, two decode kernels or the grouped products."""

import torch

from cuda_kernels.checks import check
from cuda_kernels.int4 import Int8Rows
from cuda_kernels.linear.launch import dequantize_rows
from cuda_kernels.moe.configs import decode_config, decode_tokens, float_grouped_config, int8_grouped_config
from cuda_kernels.moe.decode_launch import launch_decode
from cuda_kernels.moe.grouped_launch import launch_grouped
from cuda_kernels.moe.layout import DenseExperts, Int4Experts, Routing


def fused_moe(
    x: torch.Tensor, routing: Routing, experts: DenseExperts, residual: torch.Tensor | None, *, out: torch.Tensor
) -> None:
    """Fill `out` with the products of dense experts; sizes that the tensor cores cannot take raise ValueError."""
    count, hidden, width = experts.down.shape
    check(hidden % 16 == 0, "fused_moe", "x", "a multiple of 16 columns on a CUDA device", hidden)
    check(width % 16 == 0, "fused_moe", "down", "a multiple of 16 columns on a CUDA device", width)
    config = float_grouped_config(routing.ids.numel(), count, width)
    launch_grouped(x, None, routing, experts, residual, out, config)


def fused_moe_int4(
    x: torch.Tensor, routing: Routing, experts: Int4Experts, residual: torch.Tensor | None, *, out: torch.Tensor
) -> None:
    """Fill `out` with the products of int4 experts and floating-point rows."""
    if x.shape[0] <= decode_tokens("int4"):
        launch_decode(x, None, routing, experts, residual, out, decode_config("int4", x.shape[0]))
    else:
        _launch_floats(x, routing, experts, residual, out)


def fused_moe_int4_int8(
    rows: Int8Rows,
    routing: Routing,
    experts: Int4Experts,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` with the products of int4 experts and int8 rows; weights are unpacked signed, without group sums."""
    values, scale, _ = rows
    tokens, width, group = values.shape[0], experts.gate_up.shape[1] // 2, 2 * values.shape[2] // scale.shape[1]
    if tokens <= decode_tokens("int8"):
        launch_decode(values, scale, routing, experts, residual, out, decode_config("int8", tokens))
    elif group >= 64 and width % 64 == 0:
        config = int8_grouped_config(
            routing.ids.numel(), experts.gate_up.shape[0], width, width // experts.down_scales.shape[2]
        )
        launch_grouped(values, scale, routing, experts, residual, out, config)
    else:
        # A step of the int8 tensor-core product takes 32 elements of either plane, so smaller groups go by floats.
        _launch_floats(dequantize_rows(values, scale), routing, experts, residual, out)


def _launch_floats(
    x: torch.Tensor, routing: Routing, experts: Int4Experts, residual: torch.Tensor | None, out: torch.Tensor
) -> None:
    count, rows = experts.gate_up.shape[:2]
    config = float_grouped_config(routing.ids.numel(), count, rows // 2)
    launch_grouped(x, None, routing, experts, residual, out, config)
