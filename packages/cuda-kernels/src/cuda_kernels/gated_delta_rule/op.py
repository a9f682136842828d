"""Operators of the gated-delta-rule family: declarations, checks and public functions of the bare rule."""

import functools
from itertools import pairwise
from typing import Any

import torch

from cuda_kernels.checks import FLOATS, check, check_tensor, checked
from cuda_kernels.gated_delta_rule import launch, net_op, reference
from cuda_kernels.gated_delta_rule.cases import COMPILE_CASES
from cuda_kernels.library import Operator


def _checked_outputs(
    operator: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_tensor(operator, "q", q, shape=("T", "Hk", "Dk"), dtype=FLOATS)
    tokens, key_heads, key_dim = q.shape
    check_tensor(operator, "k", k, shape=(tokens, key_heads, key_dim), dtype=q.dtype, device=q.device)
    check_tensor(operator, "v", v, shape=(tokens, "Hv", "Dv"), dtype=q.dtype, device=q.device)
    heads, value_dim = v.shape[1:]
    check(key_heads > 0, operator, "q", "at least one head", "none")
    check(heads % key_heads == 0, operator, "v", f"a multiple of {key_heads} heads", heads)
    for name, gate in (("g", g), ("beta", beta)):
        check_tensor(operator, name, gate, shape=(tokens, heads), dtype=torch.float32, device=q.device)
    count = 1
    if cu_seqlens is not None:
        check_tensor(operator, "cu_seqlens", cu_seqlens, shape=("N + 1",), dtype=torch.int32, device=q.device)
        check(cu_seqlens.shape[0] >= 2, operator, "cu_seqlens", "at least two offsets", cu_seqlens.shape[0])
        count = cu_seqlens.shape[0] - 1
    states = (count, heads, key_dim, value_dim)
    if initial_state is not None:
        check_tensor(operator, "initial_state", initial_state, shape=states, dtype=torch.float32, device=q.device)
    return torch.empty_like(v), v.new_empty(states, dtype=torch.float32)


_fake_recurrent = functools.partial(_checked_outputs, "recurrent_gated_delta_rule")
_fake_chunk = functools.partial(_checked_outputs, "chunk_gated_delta_rule")


def _check_chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
    """Check also the offsets, which only a host can read."""
    _fake_chunk(q, k, v, *rest)
    *_, cu_seqlens = rest
    if cu_seqlens is not None:
        _check_offsets(cu_seqlens, v.shape[0])


def _check_offsets(cu_seqlens: torch.Tensor, tokens: int) -> None:
    offsets = cu_seqlens.tolist()
    rising = all(a <= b for a, b in pairwise(offsets))
    fits = rising and offsets[0] == 0 and offsets[-1] == tokens
    check(fits, "chunk_gated_delta_rule", "cu_seqlens", f"rising offsets from 0 to {tokens}", offsets)


__all__ = ["COMPILE_CASES", "OPERATORS", "chunk_gated_delta_rule", "recurrent_gated_delta_rule"]

OPERATORS = (
    Operator(
        schema="recurrent_gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial_state)"
        " -> (Tensor out, Tensor final_state)",
        reference=checked(_fake_recurrent, reference.recurrent_gated_delta_rule),
        fake=_fake_recurrent,
        cuda=launch.recurrent_gated_delta_rule,
    ),
    Operator(
        schema="chunk_gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial_state,"
        " Tensor? cu_seqlens) -> (Tensor out, Tensor final_state)",
        reference=checked(_check_chunk, reference.chunk_gated_delta_rule),
        fake=_fake_chunk,
        cuda=launch.chunk_gated_delta_rule,
    ),
    *net_op.OPERATORS,
)


def recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply S ← exp(g) S; S ← S + k ⊗ beta (v - Sᵀk); o = Sᵀq token by token; for few tokens.

    Arguments, result and errors are those of `chunk_gated_delta_rule`, for one sequence.
    """
    result: tuple[torch.Tensor, torch.Tensor] = torch.ops.cuda_kernels.recurrent_gated_delta_rule(
        q, k, v, g, beta, initial_state
    )
    return result


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply S ← exp(g) S; S ← S + k ⊗ beta (v - Sᵀk); o = Sᵀq in chunks of 64 tokens, on tensor cores.

    q, k: (T, Hk, Dk) float32, bfloat16 or float16, contiguous; used as they are: normalized and scaled by the caller.
    v: (T, Hv, Dv), q's dtype; value head h belongs to key head h // (Hv / Hk).
    g: (T, Hv) float32, at most 0. beta: (T, Hv) float32.
    initial_state: (N, Hv, Dk, Dv) float32; zeros where None.
    cu_seqlens: (N + 1,) int32, where each of N packed sequences begins and the last ends; sequences may be empty.

    Returns the outputs (T, Hv, Dv) in v's dtype and the final states (N, Hv, Dk, Dv) float32; N is 1 without
    `cu_seqlens`. Products are rounded to q's dtype, sums and the state are float32.

    Raises ValueError on wrong shape, dtype, device or strides; on the CPU also on offsets that do not rise from 0 to T.
    Source: Yang, Kautz and Hatamizadeh, 2024, arXiv:2412.06464.
    """
    result: tuple[torch.Tensor, torch.Tensor] = torch.ops.cuda_kernels.chunk_gated_delta_rule(
        q, k, v, g, beta, initial_state, cu_seqlens
    )
    return result
