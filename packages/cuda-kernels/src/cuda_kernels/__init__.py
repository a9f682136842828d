"""int4 and recurrent-attention operators for PyTorch, in Triton."""

from cuda_kernels.attention.layout import HeadTransform, KeyValueCache
from cuda_kernels.attention.op import attention_decode, attention_decode_int8, attention_prefill
from cuda_kernels.gated_delta_rule.layout import DeltaNetState, DeltaNetWeights, HeadNorm
from cuda_kernels.gated_delta_rule.net_op import gated_delta_net_decode, gated_delta_net_prefill
from cuda_kernels.gated_delta_rule.op import chunk_gated_delta_rule, recurrent_gated_delta_rule
from cuda_kernels.int4 import Int8Rows
from cuda_kernels.linear.norm_op import rms_norm_gated_int4_linear_int8, rms_norm_int4_linear_int8
from cuda_kernels.linear.op import int4_linear, int4_linear_int8, quantize_int8
from cuda_kernels.linear.routed_op import int4_linear_router_int8
from cuda_kernels.moe.layout import Int4Experts, Routing
from cuda_kernels.moe.op import fused_moe, fused_moe_int4, fused_moe_int4_int8, routed_moe_int4_int8
from cuda_kernels.moe.routing_op import moe_align_block_size, moe_router, rms_norm_router_int8
from cuda_kernels.norm.op import rms_norm, rms_norm_gated, rms_norm_int8
from cuda_kernels.registration import register
from cuda_kernels.sampling.layout import SamplingRows
from cuda_kernels.sampling.op import mark_prompt, sample_tokens
from cuda_kernels.sort.op import sort_stable

__all__ = [
    "DeltaNetState",
    "DeltaNetWeights",
    "HeadNorm",
    "HeadTransform",
    "Int4Experts",
    "Int8Rows",
    "KeyValueCache",
    "Routing",
    "SamplingRows",
    "attention_decode",
    "attention_decode_int8",
    "attention_prefill",
    "chunk_gated_delta_rule",
    "fused_moe",
    "fused_moe_int4",
    "fused_moe_int4_int8",
    "gated_delta_net_decode",
    "gated_delta_net_prefill",
    "int4_linear",
    "int4_linear_int8",
    "int4_linear_router_int8",
    "mark_prompt",
    "moe_align_block_size",
    "moe_router",
    "quantize_int8",
    "recurrent_gated_delta_rule",
    "register",
    "rms_norm",
    "rms_norm_gated",
    "rms_norm_gated_int4_linear_int8",
    "rms_norm_int4_linear_int8",
    "rms_norm_int8",
    "rms_norm_router_int8",
    "routed_moe_int4_int8",
    "sample_tokens",
    "sort_stable",
]
