"""Launches of the attention kernels: two for a decode step, two for a prefill."""

from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from cuda_kernels.attention.configs import decode_config, prefill_config, shared_memory
from cuda_kernels.attention.decode import attention_combine_kernel, attention_split_kernel
from cuda_kernels.attention.layout import HeadTransform, KeyValueCache, sizes_of
from cuda_kernels.attention.prefill import attention_prefill_kernel, attention_prepare_kernel
from cuda_kernels.primitives import has_dependent_launch


def attention_decode(
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` (B, Hq·D) with the attention of each row."""
    outputs: dict[str, torch.Tensor | None] = {"p_out": out, "p_scale": None, "p_group_sum": None}
    _launch_decode(qkv, heads, cache, {"p_positions": positions, "p_slots": slots}, outputs, 0)


def attention_decode_int8(
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    positions: torch.Tensor,
    slots: torch.Tensor,
    group_size: int,
    *,
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
) -> None:
    """Fill the outputs with the attention of each row, quantized."""
    outputs: dict[str, torch.Tensor | None] = {
        "p_out": values.view(torch.int32),
        "p_scale": scale,
        "p_group_sum": group_sum,
    }
    _launch_decode(qkv, heads, cache, {"p_positions": positions, "p_slots": slots}, outputs, group_size)


def _launch_decode(
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    place: dict[str, torch.Tensor],
    outputs: dict[str, torch.Tensor | None],
    group_size: int,
) -> None:
    sizes = sizes_of(qkv, heads, cache)
    if sizes.rows == 0:
        return
    config = decode_config(sizes)
    pdl = has_dependent_launch(qkv.device)
    acc = qkv.new_empty((sizes.rows, config.splits, sizes.query_heads, sizes.head_size), dtype=torch.float32)
    top = torch.empty_like(acc[..., 0])
    common: dict[str, Any] = {
        "p_qkv": qkv,
        "p_acc": acc,
        "p_max": top,
        "p_sum": torch.empty_like(top),
        "slots": sizes.slots,
        "context": sizes.context,
        "SPLITS": config.splits,
        "BLOCK_N": config.block_keys,
        "PDL": pdl,
        "launch_pdl": pdl,
        **place,
        **sizes.constexprs,
    }
    attention_split_kernel[(config.splits, sizes.kv_heads, sizes.rows)](
        p_q_norm=heads.q_norm,
        p_k_norm=heads.k_norm,
        p_rope=heads.rope,
        p_k_cache=cache.keys,
        p_v_cache=cache.values,
        eps=heads.eps,
        ROTARY=sizes.rotary,
        BLOCK_H=config.block_heads,
        num_warps=config.warps,
        num_stages=config.stages,
        **common,
    )
    columns = group_size or config.columns
    attention_combine_kernel[(sizes.width // columns, sizes.rows)](
        COLUMNS=columns,
        GROUP=group_size,
        num_warps=config.combine_warps,
        **outputs,
        **common,
    )


def attention_prefill(
    qkv: torch.Tensor,
    heads: HeadTransform,
    cache: KeyValueCache,
    start: torch.Tensor,
    slot: torch.Tensor,
    *,
    out: torch.Tensor,
) -> None:
    """Fill `out` (T, Hq·D) with the attention of the rows of one slot."""
    sizes = sizes_of(qkv, heads, cache)
    if sizes.rows == 0:
        return
    config = prefill_config(sizes, qkv.element_size(), shared_memory(qkv.device))
    q = qkv.new_empty((sizes.rows * sizes.query_heads, sizes.head_size))
    common: dict[str, Any] = {
        "p_qkv": qkv,
        "p_start": start,
        "p_slot": slot,
        "tokens": sizes.rows,
        "slots": sizes.slots,
        "context": sizes.context,
        **sizes.constexprs,
    }
    attention_prepare_kernel[(triton.cdiv(sizes.rows, config.prepare_tokens), sizes.query_heads + sizes.kv_heads)](
        p_q_norm=heads.q_norm,
        p_k_norm=heads.k_norm,
        p_rope=heads.rope,
        p_k_cache=cache.keys,
        p_v_cache=cache.values,
        p_q=q,
        eps=heads.eps,
        ROTARY=sizes.rotary,
        BLOCK_T=config.prepare_tokens,
        num_warps=4,
        **common,
    )
    rows = sizes.rows * (sizes.query_heads // sizes.kv_heads)
    keys, values = cache.keys.view(-1, sizes.head_size), cache.values.view(-1, sizes.head_size)
    tile, edge = [config.block_keys, sizes.head_size], [config.edge_keys, sizes.head_size]
    attention_prefill_kernel[(sizes.kv_heads, triton.cdiv(rows, config.block_rows))](
        t_q=TensorDescriptor.from_tensor(q, [config.block_rows, sizes.head_size]),
        t_k=TensorDescriptor.from_tensor(keys, tile),
        t_v=TensorDescriptor.from_tensor(values, tile),
        t_k_edge=TensorDescriptor.from_tensor(keys, edge),
        t_v_edge=TensorDescriptor.from_tensor(values, edge),
        p_out=out,
        BLOCK_M=config.block_rows,
        BLOCK_N=config.block_keys,
        EDGE_N=config.edge_keys,
        PARTS=config.gate_parts,
        num_warps=config.warps,
        num_stages=config.stages,
        **common,
    )
