"""Tensor-core products with int4 weights: the weights, unpacked in registers, are the left operand, tokens the right.

T tokens, N outputs, K inputs. A program computes BLOCK_N outputs of BLOCK_T tokens and walks K group by group, so that
one scale a weight row and one a token apply to each partial sum.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import dequantize_packed, split_nibbles, wait_for_previous


@triton.jit(do_not_specialize=["T"])
def matmul_int8_kernel(
    p_values,
    p_scale,
    p_weight,
    p_scales,
    p_residual,
    p_out,
    T,
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PDL: tl.constexpr,
):
    """Multiply int8 rows, GROUP (64 or 128) elements at a time; p_residual may be None."""
    HALF: tl.constexpr = GROUP // 2
    GROUPS: tl.constexpr = K // GROUP
    o_n, o_t, r_n, r_t = _tile(T, N, BLOCK_N, BLOCK_T)
    o_k = tl.arange(0, HALF)
    p_w = p_weight + r_n[:, None] * (K // 2) + o_k[None, :]
    p_a = p_values + r_t[None, :] * K + o_k[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    wait_for_previous(PDL)
    for g in range(GROUPS):
        even, odd = split_nibbles(tl.load(p_w + g * HALF))
        partial = tl.dot(even, tl.load(p_a + g * HALF), out_dtype=tl.int32)
        partial = tl.dot(odd, tl.load(p_a + g * HALF + K // 2), partial, out_dtype=tl.int32)
        scale_n = tl.load(p_scales + r_n * GROUPS + g).to(tl.float32) * 0.0625
        scale_t = tl.load(p_scale + r_t * GROUPS + g)
        acc += partial.to(tl.float32) * scale_n[:, None] * scale_t[None, :]
    _store_tile(acc, p_residual, p_out, o_n, o_t, T, N)


@triton.jit(do_not_specialize=["T"])
def matmul_kernel(
    p_x,
    p_weight,
    p_scales,
    p_residual,
    p_out,
    T,
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PDL: tl.constexpr,
):
    """Multiply floating-point rows with weights dequantized to their dtype; p_residual may be None."""
    HALF: tl.constexpr = GROUP // 2
    GROUPS: tl.constexpr = K // GROUP
    o_n, o_t, r_n, r_t = _tile(T, N, BLOCK_N, BLOCK_T)
    p_w = p_weight + r_n[:, None] * (K // 2) + tl.arange(0, HALF)[None, :]
    p_a = p_x + r_t[None, :] * K + tl.arange(0, GROUP)[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    wait_for_previous(PDL)
    for g in range(GROUPS):
        weight = dequantize_packed(tl.load(p_w + g * HALF), tl.load(p_scales + r_n * GROUPS + g), p_x.dtype.element_ty)
        x = tl.load(p_a + g * GROUP)
        acc = tl.dot(weight, x, acc, input_precision="ieee")
    _store_tile(acc, p_residual, p_out, o_n, o_t, T, N)


@triton.jit
def _tile(T, N, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr):
    """Return the outputs and tokens of this program, and the same clamped to rows that exist."""
    blocks_t = tl.cdiv(T, BLOCK_T)
    pid = tl.program_id(0)
    # Neighbours share their weight rows, which are the larger operand.
    o_n = (pid // blocks_t) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_t = (pid % blocks_t) * BLOCK_T + tl.arange(0, BLOCK_T)
    return o_n, o_t, tl.minimum(o_n, N - 1).to(tl.int64), tl.minimum(o_t, T - 1).to(tl.int64)


@triton.jit
def _store_tile(acc, p_residual, p_out, o_n, o_t, T, N):
    """Store acc (BLOCK_N, BLOCK_T) transposed, plus the residual where there is one, to out (T, N)."""
    offsets = o_t.to(tl.int64)[:, None] * N + o_n[None, :]
    mask = (o_t < T)[:, None] & (o_n < N)[None, :]
    out = tl.trans(acc)
    if p_residual is not None:
        out += tl.load(p_residual + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(p_out + offsets, out.to(p_out.dtype.element_ty), mask=mask)
