"""Launch of the kernels of many tokens: pairs sorted by expert, two grouped products, and the sum over slots."""

from typing import Any

import torch
import triton

from cuda_kernels.moe import grouped
from cuda_kernels.moe.combine import combine
from cuda_kernels.moe.configs import GroupedConfig
from cuda_kernels.moe.layout import DenseExperts, Int4Experts, Routing
from cuda_kernels.moe.reference import align_capacity
from cuda_kernels.moe.routing_launch import moe_align_block_size
from cuda_kernels.primitives import has_dependent_launch

COMBINE_BLOCK = 1024


def launch_grouped(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    routing: Routing,
    experts: Int4Experts | DenseExperts,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    config: GroupedConfig,
) -> None:
    """Fill `out` with the expert products of x: int8 values with `x_scale`, or floats without."""
    (tokens, hidden), ids = out.shape, routing.ids
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
        p_weights=routing.weights,
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
    combine[(tokens * triton.cdiv(hidden, combine_block),)](
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
