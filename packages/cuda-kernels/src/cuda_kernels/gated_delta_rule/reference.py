"""The gated delta rule in plain torch: token by token, and in chunks.

Per value head, with state S (Dk × Dv): S ← exp(g) S;  S ← S + k ⊗ beta (v - Sᵀ k);  o = Sᵀ q.

Legend: T tokens, N sequences, M chunks, C tokens of a chunk, Hk / Hv key / value heads, Dk / Dv head sizes.
"""

from itertools import pairwise

import torch

CHUNK = 64


def recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the rule token by token to one sequence; return the outputs in v's dtype and the final state.

    Computes in float32, in float64 where v is float64. Arguments as in `chunk_gated_delta_rule`.
    """
    dtype = _compute_dtype(v)
    q_THD, k_THD = (_per_value_head(x, v.shape[1]).to(dtype) for x in (q, k))
    v_THD, decay_TH, beta_TH = v.to(dtype), g.to(dtype).exp(), beta.to(dtype)
    state = _initial_states(initial_state, 1, k, v)[0].to(dtype)
    out = torch.empty_like(v_THD)
    for t in range(v.shape[0]):
        state, out[t] = step(state, q_THD[t], k_THD[t], v_THD[t], decay_TH[t], beta_TH[t])
    return out.to(v.dtype), state.unsqueeze(0)


def step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the rule to one token; return the new state `(..., Hv, Dk, Dv)` and the output `(..., Hv, Dv)`.

    q, k: (..., Hv, Dk). v: (..., Hv, Dv). decay (exp(g)), beta: (..., Hv).
    """
    state = state * decay[..., None, None]
    predicted = (k.unsqueeze(-2) @ state).squeeze(-2)
    state = state + k.unsqueeze(-1) * ((v - predicted) * beta.unsqueeze(-1)).unsqueeze(-2)
    return state, (q.unsqueeze(-2) @ state).squeeze(-2)


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the rule chunk by chunk; return the outputs in v's dtype and the final states (N, Hv, Dk, Dv).

    q, k: (T, Hk, Dk), used as they are. v: (T, Hv, Dv). g (≤ 0), beta: (T, Hv).
    initial_state: (N, Hv, Dk, Dv), zeros where None. cu_seqlens: (N + 1,) offsets of the sequences, one where None.

    Within a chunk the updates are the solution of a unit triangular system: Yang et al., 2024, arXiv:2412.06464.
    """
    bounds = [0, v.shape[0]] if cu_seqlens is None else cu_seqlens.tolist()
    dtype = _compute_dtype(v)
    states = _initial_states(initial_state, len(bounds) - 1, k, v).to(dtype)
    out = torch.empty_like(v)
    finals = []
    for n, (first, last) in enumerate(pairwise(bounds)):
        part = slice(first, last)
        q_THD, k_THD = (_per_value_head(x[part], v.shape[1]).to(dtype) for x in (q, k))
        sequence = (q_THD, k_THD, v[part].to(dtype), g[part], beta[part].to(dtype))
        out_THD, final = _one_sequence(*sequence, states[n])
        out[part] = out_THD.to(v.dtype)
        finals.append(final)
    return out, torch.stack(finals)


def _one_sequence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = v.shape[0]
    if tokens == 0:
        return torch.empty_like(v), state
    size = min(CHUNK, tokens)
    # The cumulative decay is summed in float64: the differences of its large values are what counts.
    decay_HMC = _chunks(g.to(torch.float64), size).cumsum(-1)
    q_HMCD, k_HMCD, v_HMCD, beta_HMC = (_chunks(x, size) for x in (q, k, v, beta))
    # The first tril keeps exp from overflowing above the diagonal, the second clears its ones there.
    pair_HMCC = (decay_HMC.unsqueeze(-1) - decay_HMC.unsqueeze(-2)).tril().exp().tril().to(v.dtype)
    from_start_HMC = decay_HMC.exp().to(v.dtype)
    to_end_HMC = (decay_HMC[..., -1:] - decay_HMC).exp().to(v.dtype)

    beta_k = k_HMCD * beta_HMC.unsqueeze(-1)
    system_HMCC = (beta_k @ k_HMCD.mT) * pair_HMCC  # its diagonal is read as ones
    right = torch.cat((v_HMCD * beta_HMC.unsqueeze(-1), beta_k * from_start_HMC.unsqueeze(-1)), -1)
    solved = torch.linalg.solve_triangular(system_HMCC, right, upper=False, unitriangular=True)
    u_HMCD, w_HMCD = solved.split((v.shape[-1], k.shape[-1]), -1)

    q_from_start = q_HMCD * from_start_HMC.unsqueeze(-1)
    k_to_end = k_HMCD * to_end_HMC.unsqueeze(-1)
    attention_HMCC = (q_HMCD @ k_HMCD.mT) * pair_HMCC
    out_HMCD = torch.empty_like(v_HMCD)
    for m in range(v_HMCD.shape[1]):
        new_v = u_HMCD[:, m] - w_HMCD[:, m] @ state
        out_HMCD[:, m] = q_from_start[:, m] @ state + attention_HMCC[:, m] @ new_v
        state = state * from_start_HMC[:, m, -1, None, None] + k_to_end[:, m].mT @ new_v
    return out_HMCD.flatten(1, 2)[:, :tokens].transpose(0, 1), state


def _chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return `(Hv, M, size, ...)` of `(T, Hv, ...)`, padded with zeros: tokens that change nothing."""
    padding = -x.shape[0] % size
    if padding:
        x = torch.cat((x, x.new_zeros(padding, *x.shape[1:])))
    return x.transpose(0, 1).unflatten(1, (-1, size))


def _per_value_head(x: torch.Tensor, value_heads: int) -> torch.Tensor:
    return x.repeat_interleave(value_heads // x.shape[1], 1)


def _initial_states(initial: torch.Tensor | None, count: int, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if initial is not None:
        return initial
    return v.new_zeros(count, v.shape[1], k.shape[2], v.shape[2], dtype=_compute_dtype(v))


def _compute_dtype(v: torch.Tensor) -> torch.dtype:
    return torch.float64 if v.dtype == torch.float64 else torch.float32
