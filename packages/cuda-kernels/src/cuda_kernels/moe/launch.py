"""Launches of the expert products: the choice by token count, two decode kernels or the grouped products."""

from typing import Any

import torch
import triton

from cuda_kernels.checks import check
from cuda_kernels.linear.launch import dequantize_rows
from cuda_kernels.moe import decode, grouped
from cuda_kernels.moe.configs import DecodeConfig, GroupedConfig, decode_config, decode_tokens, grouped_config
from cuda_kernels.moe.reference import align_capacity
from cuda_kernels.moe.routing_launch import moe_align_block_size
from cuda_kernels.moe.types import DenseExperts, Int4Experts
from cuda_kernels.primitives import has_dependent_launch

COMBINE_BLOCK = 1024


def fused_moe(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    residual: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` with the products of dense experts; sizes that the tensor cores cannot take raise ValueError."""
    hidden, width = down.shape[1:]
    check(hidden % 16 == 0, "fused_moe", "x", "a multiple of 16 columns on a CUDA device", hidden)
    check(width % 16 == 0, "fused_moe", "down", "a multiple of 16 columns on a CUDA device", width)
    config = grouped_config("dense", ids.numel(), gate_up.shape[0], width)
    launch_grouped(x, None, weights, ids, DenseExperts(gate_up=gate_up, down=down), residual, out, config)


def fused_moe_int4(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scales: torch.Tensor,
    down: torch.Tensor,
    down_scales: torch.Tensor,
    residual: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` with the products of int4 experts and floating-point rows."""
    experts = Int4Experts(gate_up=gate_up, gate_up_scales=gate_up_scales, down=down, down_scales=down_scales)
    if x.shape[0] <= decode_tokens("int4"):
        launch_decode(x, None, weights, ids, experts, residual, out, decode_config("int4", x.shape[0]))
        return
    config = grouped_config("int4", ids.numel(), gate_up.shape[0], gate_up.shape[1] // 2)
    launch_grouped(x, None, weights, ids, experts, residual, out, config)


def fused_moe_int4_int8(
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scales: torch.Tensor,
    down: torch.Tensor,
    down_scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` with the products of int4 experts and int8 rows; weights are unpacked signed, without group_sum."""
    experts = Int4Experts(gate_up=gate_up, gate_up_scales=gate_up_scales, down=down, down_scales=down_scales)
    width, group = gate_up.shape[1] // 2, 2 * values.shape[2] // scale.shape[1]
    if values.shape[0] <= decode_tokens("int8"):
        launch_decode(values, scale, weights, ids, experts, residual, out, decode_config("int8", values.shape[0]))
    elif group >= 64 and width % 64 == 0:
        config = grouped_config("int8", ids.numel(), gate_up.shape[0], width)
        launch_grouped(values, scale, weights, ids, experts, residual, out, config)
    else:
        # A step of the int8 tensor-core product takes 32 elements of either plane, so smaller groups go by floats.
        config = grouped_config("int4", ids.numel(), gate_up.shape[0], width)
        launch_grouped(dequantize_rows(values, scale), None, weights, ids, experts, residual, out, config)


def launch_decode(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    weights: torch.Tensor,
    ids: torch.Tensor,
    experts: Int4Experts,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    config: DecodeConfig,
) -> None:
    """Fill `out` with the expert products of x: int8 values with `x_scale`, or floats without."""
    count, rows, hidden_groups = experts.gate_up_scales.shape
    tokens, hidden = out.shape
    width, slots, int8 = rows // 2, ids.shape[1], x_scale is not None
    pdl = has_dependent_launch(out.device)
    h_shape = (tokens * slots, width)
    h = out.new_empty(h_shape, dtype=torch.int8 if int8 else torch.float32)
    h_scale = out.new_empty((tokens * slots, width // config.gate_up_block), dtype=torch.float32) if int8 else None
    if tokens == 0:
        return
    sizes: dict[str, Any] = {
        "EXPERTS": count,
        "SLOTS": slots,
        "HIDDEN": hidden,
        "WIDTH": width,
        "GROUP": hidden // hidden_groups,
        "INT8": int8,
        "PDL": pdl,
        "launch_pdl": pdl,
    }
    decode.gate_up[(tokens * slots * (width // config.gate_up_block),)](
        p_x=x.view(torch.int32) if int8 else x,
        p_x_scale=x_scale,
        p_ids=ids,
        p_weight=experts.gate_up.view(torch.int32),
        p_weight_scale=experts.gate_up_scales,
        p_h=h.view(torch.int32) if int8 else h,
        p_h_scale=h_scale,
        BLOCK=config.gate_up_block,
        PADDED=triton.next_power_of_2(hidden // 8),
        num_warps=config.gate_up_warps,
        **sizes,
    )
    most = 1 << (slots.bit_length() - 1)
    decode.down[(tokens * (hidden // config.down_block),)](
        p_h=h.view(torch.int32) if int8 else h,
        p_h_scale=h_scale,
        p_weights=weights,
        p_ids=ids,
        p_weight=experts.down.view(torch.int32),
        p_weight_scale=experts.down_scales,
        p_residual=residual,
        p_out=out,
        H_BLOCK=config.gate_up_block,
        BLOCK=config.down_block,
        MOST=most,
        REST=triton.next_power_of_2(slots - most) if slots > most else 0,
        PADDED=triton.next_power_of_2(width // 8),
        num_warps=config.down_warps,
        **sizes,
    )


def launch_grouped(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    weights: torch.Tensor,
    ids: torch.Tensor,
    experts: Int4Experts | DenseExperts,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    config: GroupedConfig,
) -> None:
    """Fill `out` with the expert products of x: int8 values with `x_scale`, or floats without."""
    tokens, hidden = out.shape
    if tokens == 0:
        return
    count, rows = experts.gate_up.shape[:2]
    slots, width, pairs = ids.shape[1], rows // 2, ids.numel()
    pdl = has_dependent_launch(out.device)
    scales: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    if isinstance(experts, DenseExperts):
        kind = "dense"
        group, gate_up_step, down_step = 1, min(64, hidden & -hidden), min(64, width & -width)
    else:
        kind = "int8" if x_scale is not None else "int4"
        scales = (experts.gate_up_scales, experts.down_scales)
        group = gate_up_step = hidden // experts.gate_up_scales.shape[2]
        down_step = config.gate_up.rows if kind == "int8" else group

    capacity = align_capacity(pairs, config.pair_block, count)
    sorted_ids = ids.new_empty(capacity)
    expert_ids = ids.new_empty(capacity // config.pair_block)
    num_padded = ids.new_empty(1)
    compute = out.dtype if kind == "int8" else x.dtype
    h = out.new_empty((capacity, width), dtype=torch.int8 if kind == "int8" else compute)
    x_scale_sorted = h_scale = None
    if x_scale is not None:
        x_scale_sorted = x_scale.new_empty((expert_ids.numel(), x_scale.shape[1], config.pair_block))
        h_scale = x_scale.new_empty((expert_ids.numel(), width // config.gate_up.rows, config.pair_block))
    y = out.new_empty((pairs, hidden), dtype=compute)
    moe_align_block_size(
        ids,
        config.pair_block,
        count,
        sorted_ids=sorted_ids,
        expert_ids=expert_ids,
        num_padded=num_padded,
        scale=x_scale,
        sorted_scale=x_scale_sorted,
    )
    # A block has a pair at least, so there are no more used blocks than pairs.
    blocks = min(expert_ids.numel(), pairs)
    shared: dict[str, Any] = {
        "p_sorted": sorted_ids,
        "p_expert": expert_ids,
        "pairs": pairs,
        "HIDDEN": hidden,
        "WIDTH": width,
        "GROUP": group,
        "KIND": kind,
        "PAIR_BLOCK": config.pair_block,
        "PDL": pdl,
        "launch_pdl": pdl,
    }
    grouped.gate_up_blocks[(blocks * (width // config.gate_up.rows),)](
        p_x=x,
        p_x_scale=x_scale_sorted,
        p_weight=experts.gate_up,
        p_weight_scale=scales[0],
        p_h=h,
        p_h_scale=h_scale,
        SLOTS=slots,
        STEP=gate_up_step,
        ROW_BLOCK=config.gate_up.rows,
        STEPS=config.gate_up.steps,
        STAGES=config.gate_up.stages,
        num_warps=config.gate_up.warps,
        maxnreg=config.gate_up.registers,
        **shared,
    )
    grouped.down_blocks[(blocks * triton.cdiv(hidden, config.down.rows),)](
        p_h=h,
        p_h_scale=h_scale,
        p_weight=experts.down,
        p_weight_scale=scales[1],
        p_weights=weights,
        p_y=y,
        STEP=down_step,
        ROW_BLOCK=config.down.rows,
        STEPS=config.down.steps,
        STAGES=config.down.stages,
        num_warps=config.down.warps,
        maxnreg=config.down.registers,
        **shared,
    )
    combine_block = min(COMBINE_BLOCK, triton.next_power_of_2(hidden))
    grouped.combine[(tokens * triton.cdiv(hidden, combine_block),)](
        p_y=y,
        p_ids=ids,
        p_residual=residual,
        p_out=out,
        EXPERTS=count,
        SLOTS=slots,
        HIDDEN=hidden,
        BLOCK=combine_block,
        PDL=pdl,
        launch_pdl=pdl,
    )
