"""Launches of the whole gated delta net: one kernel for a decode step, those around the chunked rule for a prefill."""

import torch
import triton

from cuda_kernels.gated_delta_rule.configs import decode_config
from cuda_kernels.gated_delta_rule.decode import gated_delta_net_decode_kernel
from cuda_kernels.gated_delta_rule.launch import RuleTensors, run_chunks
from cuda_kernels.gated_delta_rule.layout import DeltaNetShape, DeltaNetState, DeltaNetWeights, HeadNorm, shape_of
from cuda_kernels.gated_delta_rule.prefill import (
    ROWS,
    delta_conv_state_kernel,
    delta_inputs_kernel,
    delta_output_kernel,
)
from cuda_kernels.gated_delta_rule.settled import is_settled, note_writer
from cuda_kernels.primitives import has_dependent_launch


def decode(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` (B, Hv·Dv) with the decode step of a batch."""
    rows, shape = projection.shape[0], shape_of(weights, state)
    if rows == 0:
        return
    config = decode_config(shape)
    pdl = has_dependent_launch(projection.device)
    settled = pdl and is_settled(state)
    if pdl:
        note_writer(state)
    gated_delta_net_decode_kernel[(shape.value_heads * triton.cdiv(shape.value_dim, config.block_v), rows)](
        p_projection=projection,
        p_conv_weight=weights.conv_weight,
        p_a_log=weights.a_log,
        p_dt_bias=weights.dt_bias,
        p_conv_state=state.conv,
        p_state=state.recurrent,
        p_positions=positions,
        p_slots=slots,
        p_out=out,
        slots=state.recurrent.shape[0],
        HK=shape.key_heads,
        HV=shape.value_heads,
        DK=shape.key_dim,
        DV=shape.value_dim,
        W=shape.conv_width,
        BLOCK_K=triton.next_power_of_2(shape.key_dim),
        BLOCK_V=config.block_v,
        SETTLED=settled,
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
    )


def prefill(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    norm: HeadNorm,
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
    if pdl:
        note_writer(state)
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
        p_norm_weight=norm.weight,
        p_slot=slot,
        p_out=out,
        eps=norm.eps,
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
        BLOCK_W=triton.next_power_of_2(shape.conv_width),
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
