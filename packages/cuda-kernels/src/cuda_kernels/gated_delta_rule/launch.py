"""Launches of the bare rule: token by token in one kernel, or in chunks by two."""

import functools

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from cuda_kernels.gated_delta_rule.chunk import CHUNK, chunk_recurrence_kernel
from cuda_kernels.gated_delta_rule.chunk_system import chunk_system_kernel
from cuda_kernels.gated_delta_rule.configs import recurrence_config
from cuda_kernels.gated_delta_rule.recurrent import recurrent_rule_kernel
from cuda_kernels.primitives import has_dependent_launch

RuleTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # q, k, v, g, beta


def recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None,
    *,
    out: torch.Tensor,
    final_state: torch.Tensor,
) -> None:
    """Fill `out` and `final_state` with the rule applied token by token."""
    tokens, key_heads, key_dim = k.shape
    _, heads, value_dim = v.shape
    block_v = min(32, max(8, triton.next_power_of_2(value_dim)))
    pdl = has_dependent_launch(v.device)
    recurrent_rule_kernel[(triton.cdiv(value_dim, block_v), heads)](
        p_q=q,
        p_k=k,
        p_v=v,
        p_g=g,
        p_beta=beta,
        p_initial=initial_state,
        p_final=final_state,
        p_out=out,
        tokens=tokens,
        HK=key_heads,
        HV=heads,
        DK=key_dim,
        DV=value_dim,
        BLOCK_K=triton.next_power_of_2(key_dim),
        BLOCK_V=block_v,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl,
    )


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    *,
    out: torch.Tensor,
    final_state: torch.Tensor,
) -> None:
    """Fill `out` and `final_state` with the chunked rule."""
    run_chunks(
        (q, k, v, g, beta),
        {"p_offsets": cu_seqlens, "p_initial": initial_state, "p_final": final_state, "p_start": None, "p_slot": None},
        out=out,
    )


def run_chunks(
    rule: RuleTensors,
    state: dict[str, torch.Tensor | None],
    *,
    out: torch.Tensor,
) -> None:
    """Launch both kernels over q, k, v, g, beta; `state` holds the state arguments of the recurrence kernel."""
    q, k, v, g, beta = rule
    tokens, key_heads, key_dim = k.shape
    _, heads, value_dim = v.shape
    offsets, final = state["p_offsets"], state["p_final"]
    assert final is not None
    sequences = 1 if offsets is None else offsets.shape[0] - 1
    # The number of chunks is known on the device alone; every sequence may add one that is not full.
    chunks = triton.cdiv(tokens, CHUNK) + (0 if offsets is None else sequences)
    inverse, attention = (v.new_empty(tokens, heads, CHUNK) for _ in range(2))
    # Rows of a tensor map begin at multiples of 16 bytes.
    factors = g.new_empty(2, heads, triton.cdiv(tokens, 4) * 4)[:, :, :tokens]
    pdl = has_dependent_launch(v.device)
    maps = offsets is None and tokens > 0 and fits_tensor_maps(v, key_dim, value_dim)
    config = recurrence_config(value_dim, v.element_size(), tensor_maps=maps)
    common = {
        "HK": key_heads,
        "HV": heads,
        "DK": key_dim,
        "BLOCK_K": max(16, triton.next_power_of_2(key_dim)),
        "C": CHUNK,
        "PRECISION": "tf32x3" if v.dtype == torch.float32 else "tf32",
        "PDL": pdl,
        "launch_pdl": pdl,
    }
    if chunks:
        chunk_system_kernel[(chunks, heads)](
            p_q=q,
            p_k=k,
            p_g=g,
            p_beta=beta,
            p_offsets=offsets,
            p_inverse=inverse,
            p_attention=attention,
            p_from_start=factors[0],
            p_to_end=factors[1],
            factor_stride=factors.stride(1),
            tokens=tokens,
            sequences=sequences,
            SEQUENCES=0 if offsets is None else triton.next_power_of_2(sequences),
            num_warps=4,
            **common,
        )
    rows = {"p_q": q, "p_k": k, "p_v": v, "p_inverse": inverse, "p_attention": attention, "p_out": out}
    by_head = {"p_from_start": factors[0], "p_to_end": factors[1]}
    if maps:
        columns = {"p_q": key_dim, "p_k": key_dim, "p_v": config.block_v, "p_out": config.block_v}
        flat = {name: (x.view(tokens, -1), columns.get(name, CHUNK)) for name, x in rows.items()}
        rows = {name: TensorDescriptor.from_tensor(x, [CHUNK, width]) for name, (x, width) in flat.items()}
        by_head = {name: TensorDescriptor.from_tensor(x, [1, CHUNK]) for name, x in by_head.items()}
    chunk_recurrence_kernel[(triton.cdiv(value_dim, config.block_v), heads, sequences)](
        tokens=tokens,
        slots=final.shape[0],
        factor_stride=factors.stride(1),
        DV=value_dim,
        BLOCK_V=config.block_v,
        TENSOR_MAPS=maps,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **rows,
        **by_head,
        **state,
        **common,
    )


def fits_tensor_maps(v: torch.Tensor, key_dim: int, value_dim: int) -> bool:
    """Return whether the recurrence can load through tensor maps: on Hopper, 16-bit values, whole blocks."""
    return is_hopper(v.device) and v.element_size() == 2 and key_dim in (64, 128) and value_dim % 64 == 0


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Return whether `device` has compute capability 9."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
