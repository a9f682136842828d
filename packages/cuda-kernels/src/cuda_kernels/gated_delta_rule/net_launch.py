"""Launches of the whole gated delta net: one kernel for a decode step, those around the chunked rule for a prefill."""

import torch
import triton

from cuda_kernels.counters import arrival_counters
from cuda_kernels.gated_delta_rule.configs import decode_config
from cuda_kernels.gated_delta_rule.decode import gated_delta_net_decode_kernel
from cuda_kernels.gated_delta_rule.launch import RuleTensors, run_chunks
from cuda_kernels.gated_delta_rule.layout import DeltaNetShape, DeltaNetState, DeltaNetWeights, shape_of
from cuda_kernels.gated_delta_rule.prefill import (
    ROWS,
    delta_conv_state_kernel,
    delta_inputs_kernel,
    delta_output_kernel,
)
from cuda_kernels.primitives import has_dependent_launch

_Outputs = dict[str, torch.Tensor | int | None]


def decode(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, slots: torch.Tensor, *, out: torch.Tensor
) -> None:
    """Fill `out` (B, Hv·Dv) with the decode step of a batch."""
    _launch_decode(projection, weights, state, slots, {"p_out": out, "p_scale": None, "p_group_sum": None, "GROUP": 0})


def decode_int8(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    slots: torch.Tensor,
    group_size: int,
    *,
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
) -> None:
    """Fill the outputs with the quantized decode step; where a group spans heads, in a second kernel."""
    if state.recurrent.shape[3] % group_size == 0:
        words = values.view(torch.int32)
        outputs: _Outputs = {"p_out": words, "p_scale": scale, "p_group_sum": group_sum, "GROUP": group_size}
        _launch_decode(projection, weights, state, slots, outputs)
        return
    out = projection.new_empty(projection.shape[0], shape_of(weights, state).out_width)
    decode(projection, weights, state, slots, out=out)
    torch.ops.cuda_kernels.quantize_int8.out(out, group_size, values=values, scale=scale, group_sum=group_sum)


def _launch_decode(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    slots: torch.Tensor,
    outputs: _Outputs,
) -> None:
    rows, shape = projection.shape[0], shape_of(weights, state)
    if rows == 0:
        return
    device, heads = projection.device, shape.value_heads
    config = decode_config(shape, rows)
    partial, counters = None, None
    if config.split(shape.value_dim) > 1:
        partial = projection.new_empty((rows, heads, shape.value_dim), dtype=torch.float32)
        counters = arrival_counters(device, rows * heads)
    pdl = has_dependent_launch(device)
    gated_delta_net_decode_kernel[(heads * config.split(shape.value_dim), rows)](
        p_projection=projection,
        p_conv_weight=weights.conv_weight,
        p_a_log=weights.a_log,
        p_dt_bias=weights.dt_bias,
        p_norm_weight=weights.norm_weight,
        p_conv_state=state.conv,
        p_state=state.recurrent,
        p_slots=slots,
        p_partial=partial,
        p_counters=counters,
        slots=state.recurrent.shape[0],
        eps=weights.eps,
        HK=shape.key_heads,
        HV=heads,
        DK=shape.key_dim,
        DV=shape.value_dim,
        W=shape.conv_width,
        BLOCK_K=triton.next_power_of_2(shape.key_dim),
        BLOCK_V=config.block_v,
        BLOCK_D=max(config.block_v, triton.next_power_of_2(shape.value_dim)),
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
        **outputs,
    )


def prefill(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    start: torch.Tensor,
    slot: torch.Tensor,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` (T, Hv·Dv) with the prefill of one slot."""
    tokens, shape = projection.shape[0], shape_of(weights, state)
    if tokens == 0:
        return
    pdl = has_dependent_launch(projection.device)
    heads = {"HK": shape.key_heads, "HV": shape.value_heads, "DK": shape.key_dim, "DV": shape.value_dim}
    common = {"tokens": tokens, "slots": state.recurrent.shape[0], "PDL": pdl, "launch_pdl": pdl, **heads}
    blocks = triton.cdiv(tokens, ROWS)
    rule = _empty_rule(projection, shape)
    q, k, v, g, beta = rule
    delta_inputs_kernel[(blocks, 2 * shape.key_heads + shape.value_heads)](
        p_projection=projection,
        p_conv_weight=weights.conv_weight,
        p_a_log=weights.a_log,
        p_dt_bias=weights.dt_bias,
        p_conv_state=state.conv,
        p_start=start,
        p_slot=slot,
        p_q=q,
        p_k=k,
        p_v=v,
        p_g=g,
        p_beta=beta,
        W=shape.conv_width,
        BLOCK_D=triton.next_power_of_2(max(shape.key_dim, shape.value_dim)),
        ROWS=ROWS,
        **common,
    )
    recurrent = {"p_initial": state.recurrent, "p_final": state.recurrent, "p_start": start, "p_slot": slot}
    mixed = torch.empty_like(v)
    run_chunks(rule, {"p_offsets": None, **recurrent}, out=mixed)
    delta_output_kernel[(blocks, shape.value_heads)](
        p_rule=mixed,
        p_projection=projection,
        p_norm_weight=weights.norm_weight,
        p_slot=slot,
        p_out=out,
        eps=weights.eps,
        BLOCK_D=triton.next_power_of_2(shape.value_dim),
        ROWS=ROWS,
        **common,
    )
    delta_conv_state_kernel[(shape.value_heads,)](
        p_projection=projection,
        p_conv_state=state.conv,
        p_start=start,
        p_slot=slot,
        W=shape.conv_width,
        BLOCK_W=triton.next_power_of_2(shape.conv_width - 1),
        BLOCK_C=triton.next_power_of_2(shape.head_channels),
        **common,
    )


def _empty_rule(projection: torch.Tensor, shape: DeltaNetShape) -> RuleTensors:
    """Return room for q, k, v, g and beta of all tokens."""
    tokens = projection.shape[0]
    q = projection.new_empty(tokens, shape.key_heads, shape.key_dim)
    v = projection.new_empty(tokens, shape.value_heads, shape.value_dim)
    g = projection.new_empty((tokens, shape.value_heads), dtype=torch.float32)
    return q, torch.empty_like(q), v, g, torch.empty_like(g)
