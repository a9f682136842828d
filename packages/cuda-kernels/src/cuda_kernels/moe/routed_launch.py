"""Launches of routing and expert products from logits that have not seen the norm."""

from typing import Any

import torch
import triton

from cuda_kernels.checks import new_int8_rows
from cuda_kernels.int4 import Int8Rows
from cuda_kernels.moe import launch, reference, routed
from cuda_kernels.moe.configs import DecodeConfig, decode_config, decode_tokens
from cuda_kernels.moe.decode_launch import down_arguments, gate_up_arguments
from cuda_kernels.moe.layout import Int4Experts, Routing, routed_experts
from cuda_kernels.norm.launch import rms_norm_int8
from cuda_kernels.primitives import has_dependent_launch


def routed_moe_int4_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    logits: torch.Tensor,
    experts: Int4Experts,
    top_k: int,
    shared_experts: int,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out`: two kernels for a few tokens, the kernels of the other operators for more."""
    if x.shape[0] <= decode_tokens("int8"):
        config = decode_config("int8", x.shape[0])
        _few_tokens(x, norm_weight, eps, logits, experts, top_k, shared_experts, out, config)
        return
    inverse = torch.rsqrt(x.to(torch.float32).square().mean(1, keepdim=True) + eps)
    weights, ids = reference.choose(logits * inverse, top_k, shared_experts)
    group = x.shape[1] // experts.gate_up_scales.shape[2]
    rows = Int8Rows(*new_int8_rows("routed_moe_int4_int8", x, x.shape[1], group))
    rms_norm_int8(x, norm_weight, eps, True, group, values=rows.values, scale=rows.scale, group_sum=rows.group_sum)
    launch.fused_moe_int4_int8(rows, Routing(weights=weights, ids=ids), experts, x, x.dtype, out=out)


def _few_tokens(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    logits: torch.Tensor,
    experts: Int4Experts,
    top_k: int,
    shared_experts: int,
    out: torch.Tensor,
    config: DecodeConfig,
) -> None:
    tokens, hidden = x.shape
    width, slots = experts.gate_up.shape[1] // 2, top_k + shared_experts
    pdl = has_dependent_launch(x.device)
    h = x.new_empty((tokens * slots, width // 4), dtype=torch.int32)
    h_scale = x.new_empty((tokens * slots, width // config.gate_up_block), dtype=torch.float32)
    if tokens == 0:
        return
    count = routed_experts(logits.shape[1], shared_experts)
    shared: dict[str, Any] = {
        "p_x": x,
        "p_logits": logits,
        "p_h": h,
        "p_h_scale": h_scale,
        "eps": eps,
        "EXPERTS": count,
        "TOP_K": top_k,
        "SHARED": shared_experts,
        "HIDDEN": hidden,
        "WIDTH": width,
        "GROUP": hidden // experts.gate_up_scales.shape[2],
        "PADDED_EXPERTS": triton.next_power_of_2(count),
        "PDL": pdl,
        "launch_pdl": pdl,
    }
    routed.routed_gate_up[(tokens * slots * (width // config.gate_up_block),)](
        p_norm=norm_weight,
        **gate_up_arguments(experts, config),
        **shared,
    )
    routed.routed_down[(tokens * (hidden // config.down_block),)](
        p_out=out,
        PADDED_HIDDEN=triton.next_power_of_2(hidden),
        **down_arguments(experts, slots, config),
        **shared,
    )
