"""Launches of the router and of the alignment of pairs to experts: the CUDA side of the routing operators."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton

from cuda_kernels.counters import arrival_counters
from cuda_kernels.moe import align, router
from cuda_kernels.moe.configs import RouterConfig, router_config
from cuda_kernels.moe.layout import routed_experts
from cuda_kernels.primitives import has_dependent_launch

CHUNK = 128  # pairs a program
EXPERT_BLOCK = 16
CHUNK_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NormInt8:
    """The norm before the router, and the outputs for its quantized rows."""

    weight: torch.Tensor
    eps: float
    values: torch.Tensor
    scale: torch.Tensor
    group_sum: torch.Tensor


@functools.cache
def _shared_nbytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor)


def moe_router(
    x: torch.Tensor,
    weight: torch.Tensor,
    top_k: int,
    shared_experts: int,
    *,
    weights: torch.Tensor,
    ids: torch.Tensor,
) -> None:
    """Fill the routing of x."""
    config = router_config(x.shape[0], _shared_nbytes(x.device))
    launch_router(x, weight, top_k, shared_experts, weights, ids, None, config)


def rms_norm_router_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    top_k: int,
    shared_experts: int,
    group_size: int,
    *,
    weights: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
) -> None:
    """Fill the routing of the normed x, and its int8 rows."""
    norm = NormInt8(weight=norm_weight, eps=eps, values=values, scale=scale, group_sum=group_sum)
    config = router_config(x.shape[0], _shared_nbytes(x.device))
    launch_router(x, weight, top_k, shared_experts, weights, ids, norm, config)


def launch_router(
    x: torch.Tensor,
    weight: torch.Tensor,
    top_k: int,
    shared_experts: int,
    weights: torch.Tensor,
    ids: torch.Tensor,
    norm: NormInt8 | None,
    config: RouterConfig,
) -> None:
    """Fill `weights` and `ids`, and with `norm` its outputs, by the kernel that `config` names."""
    tokens, hidden = x.shape
    if tokens == 0:
        return
    experts = routed_experts(weight.shape[0], shared_experts)
    pdl = has_dependent_launch(x.device)
    shared: dict[str, Any] = {
        "p_x": x,
        "p_norm": norm.weight if norm else None,
        "eps": norm.eps if norm else 0.0,
        "p_weight": weight,
        "p_weights": weights,
        "p_ids": ids,
        "p_values": norm.values.view(torch.int32) if norm else None,
        "p_scale": norm.scale if norm else None,
        "p_group_sum": norm.group_sum if norm else None,
        "EXPERTS": experts,
        "TOP_K": top_k,
        "SHARED": shared_experts,
        "HIDDEN": hidden,
        "BLOCK": config.block,
        "PADDED_EXPERTS": triton.next_power_of_2(experts),
        "PADDED_SLOTS": triton.next_power_of_2(top_k + shared_experts),
        "PDL": pdl,
        "launch_pdl": pdl,
        "num_warps": config.warps,
    }
    group = hidden // norm.scale.shape[1] if norm else None
    if config.rowwise:
        router.route_rows[(triton.cdiv(weight.shape[0], config.block) + 1, tokens)](
            p_messages=arrival_counters(x.device, tokens * weight.shape[0]),
            GROUP=group,
            PADDED_HIDDEN=triton.next_power_of_2(hidden),
            **shared,
        )
    else:
        columns = group or min(128, hidden & -hidden)
        router.route_blocks[(triton.cdiv(tokens, config.block),)](
            tokens=tokens, GROUP=columns, num_stages=config.stages, **shared
        )


def moe_align_block_size(
    ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    *,
    sorted_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_padded: torch.Tensor,
    scale: torch.Tensor | None = None,
    sorted_scale: torch.Tensor | None = None,
) -> None:
    """Fill the three outputs as `moe_align_block_size` says.

    With `scale (T, G)`, `sorted_scale (C / block_size, G, block_size)` is filled with the scales of each pair's token,
    except at padding.
    """
    pairs = ids.numel()
    chunks = max(triton.cdiv(pairs, CHUNK), 1)
    pdl = has_dependent_launch(ids.device)
    totals = arrival_counters(ids.device, num_experts)
    places = ids.new_empty((chunks, num_experts))
    padded = triton.next_power_of_2(num_experts + 1)
    align.count[(chunks,)](
        p_ids=ids,
        p_counts=places,
        p_totals=totals,
        p_sorted=sorted_ids,
        p_expert=expert_ids,
        pairs=pairs,
        capacity=sorted_ids.numel(),
        blocks=expert_ids.numel(),
        EXPERTS=num_experts,
        PADDED=padded,
        CHUNK=CHUNK,
        PDL=pdl,
        launch_pdl=pdl,
    )
    align.place_experts[(triton.cdiv(num_experts, EXPERT_BLOCK),)](
        p_counts=places,
        p_totals=totals,
        p_expert=expert_ids,
        p_padded=num_padded,
        chunks=chunks,
        EXPERTS=num_experts,
        PADDED=padded,
        BLOCK=block_size,
        EXPERT_BLOCK=EXPERT_BLOCK,
        CHUNK_BLOCK=CHUNK_BLOCK,
        PDL=pdl,
        launch_pdl=pdl,
    )
    align.scatter[(chunks,)](
        p_ids=ids,
        p_places=places,
        p_totals=totals,
        p_sorted=sorted_ids,
        p_scale=scale,
        p_sorted_scale=sorted_scale,
        pairs=pairs,
        EXPERTS=num_experts,
        SLOTS=ids.shape[1],
        GROUPS=scale.shape[1] if scale is not None else 0,
        BLOCK=block_size,
        PADDED=padded,
        CHUNK=CHUNK,
        PDL=pdl,
        launch_pdl=pdl,
    )
