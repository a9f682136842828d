"""The gated delta rule token by token, in one kernel: for few tokens, and exact in float32."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import wait_for_previous


@triton.jit
def recurrent_rule_kernel(
    p_q,
    p_k,
    p_v,
    p_g,
    p_beta,
    p_initial,
    p_final,
    p_out,
    tokens,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PDL: tl.constexpr,
):
    """Carry BLOCK_V columns of one head's state over all tokens, from zeros where p_initial is None.

    grid: (DV / BLOCK_V, HV)
    """
    wait_for_previous(PDL)
    i_head = tl.program_id(1)
    o_k = tl.arange(0, BLOCK_K)
    o_v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k = o_k < DK
    m_v = o_v < DV
    o_state = i_head * (DK * DV) + o_k[:, None] * DV + o_v[None, :]
    m_state = m_k[:, None] & m_v[None, :]
    state = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    if p_initial is not None:
        state = tl.load(p_initial + o_state, mask=m_state, other=0.0)
    for i_token in range(tokens):
        o_t = tl.full((1,), i_token, tl.int64)
        o_key = (o_t * HK + i_head // (HV // HK)) * DK + o_k
        q = tl.load(p_q + o_key, mask=m_k, other=0.0).to(tl.float32)
        k = tl.load(p_k + o_key, mask=m_k, other=0.0).to(tl.float32)
        o_gate = o_t * HV + i_head
        v = tl.load(p_v + o_gate * DV + o_v, mask=m_v, other=0.0).to(tl.float32)
        state *= tl.exp(tl.load(p_g + o_gate))[:, None]
        delta = (v - tl.sum(state * k[:, None], 0)) * tl.load(p_beta + o_gate)
        state += k[:, None] * delta[None, :]
        out = tl.sum(state * q[:, None], 0)
        tl.store(p_out + o_gate * DV + o_v, out.to(p_out.dtype.element_ty), mask=m_v)
    tl.store(p_final + o_state, state, mask=m_state)
