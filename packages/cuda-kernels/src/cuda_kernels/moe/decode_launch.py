"""Launch of the two kernels of a few tokens: gate and up of each pair, then the down projection of each token."""

from typing import Any

import torch
import triton

from cuda_kernels.moe import decode
from cuda_kernels.moe.configs import DecodeConfig
from cuda_kernels.moe.layout import Int4Experts, Routing
from cuda_kernels.primitives import has_dependent_launch


def launch_decode(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    routing: Routing,
    experts: Int4Experts,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    config: DecodeConfig,
) -> None:
    """Fill `out` with the expert products of x: int8 values with `x_scale`, or floats without."""
    count, rows, hidden_groups = experts.gate_up_scales.shape
    tokens, hidden = out.shape
    width, slots, int8 = rows // 2, routing.ids.shape[1], x_scale is not None
    pdl = has_dependent_launch(out.device)
    h = out.new_empty((tokens * slots, width), dtype=torch.int8 if int8 else torch.float32)
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
        p_ids=routing.ids,
        p_h=h.view(torch.int32) if int8 else h,
        p_h_scale=h_scale,
        **gate_up_arguments(experts, config),
        **sizes,
    )
    decode.down[(tokens * (hidden // config.down_block),)](
        p_h=h.view(torch.int32) if int8 else h,
        p_h_scale=h_scale,
        p_weights=routing.weights,
        p_ids=routing.ids,
        p_residual=residual,
        p_out=out,
        **down_arguments(experts, slots, config),
        **sizes,
    )


def gate_up_arguments(experts: Int4Experts, config: DecodeConfig) -> dict[str, Any]:
    """Return what a kernel of gate and up takes of the expert table, with its tile and launch."""
    return {
        "p_weight": experts.gate_up.view(torch.int32),
        "p_weight_scale": experts.gate_up_scales,
        "BLOCK": config.gate_up_block,
        "PADDED": triton.next_power_of_2(experts.gate_up.shape[2] // 4),
        "num_warps": config.gate_up_warps,
    }


def down_arguments(experts: Int4Experts, slots: int, config: DecodeConfig) -> dict[str, Any]:
    """Return what a kernel of the down projection takes of the expert table, with its tiles and launch."""
    most = 1 << (slots.bit_length() - 1)
    return {
        "p_weight": experts.down.view(torch.int32),
        "p_weight_scale": experts.down_scales,
        "H_BLOCK": config.gate_up_block,
        "BLOCK": config.down_block,
        "MOST": most,
        "REST": triton.next_power_of_2(slots - most) if slots > most else 0,
        "PADDED": triton.next_power_of_2(experts.down.shape[2] // 4),
        "num_warps": config.down_warps,
    }
