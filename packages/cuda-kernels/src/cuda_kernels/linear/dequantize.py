"""Kernels that write int4 weights and int8 rows out in a floating dtype, for products that a library computes."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import dequantize_packed, wait_for_previous


@triton.jit
def dequantize_weight_kernel(
    p_weight, p_scales, p_out, N, K: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, PDL: tl.constexpr
):
    """Write one group of columns of BLOCK_N weight rows to out (N, K)."""
    group = tl.program_id(0) % (K // GROUP)
    o_n = (tl.program_id(0) // (K // GROUP)).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_n = (o_n < N)[:, None]
    o_packed = o_n[:, None] * (K // 2) + group * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
    packed = tl.load(p_weight + o_packed, mask=m_n, other=0)
    scale = tl.load(p_scales + o_n * (K // GROUP) + group, mask=o_n < N, other=0.0)
    weight = dequantize_packed(packed, scale, p_out.dtype.element_ty)
    wait_for_previous(PDL)  # the workspace may still be read by an earlier product
    tl.store(p_out + o_n[:, None] * K + group * GROUP + tl.arange(0, GROUP)[None, :], weight, mask=m_n)


@triton.jit(do_not_specialize=["T"])
def dequantize_rows_kernel(
    p_values, p_scale, p_out, T, K: tl.constexpr, GROUP: tl.constexpr, BLOCK_T: tl.constexpr, PDL: tl.constexpr
):
    """Write one group of columns of BLOCK_T int8 rows to out (T, K)."""
    group = tl.program_id(0) % (K // GROUP)
    o_t = (tl.program_id(0) // (K // GROUP)).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    m_t = (o_t < T)[:, None]
    wait_for_previous(PDL)
    p_even = p_values + o_t[:, None] * K + group * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
    even = tl.load(p_even, mask=m_t, other=0)
    odd = tl.load(p_even + K // 2, mask=m_t, other=0)
    scale = tl.load(p_scale + o_t * (K // GROUP) + group, mask=o_t < T, other=0.0)
    rows = tl.reshape(tl.join(even, odd), (BLOCK_T, GROUP)).to(tl.float32) * scale[:, None]
    out = rows.to(p_out.dtype.element_ty)
    tl.store(p_out + o_t[:, None] * K + group * GROUP + tl.arange(0, GROUP)[None, :], out, mask=m_t)
