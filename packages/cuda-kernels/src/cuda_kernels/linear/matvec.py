"""Matrix-vector products with int4 weights, for one row or a few: bound by the bytes of the weights.

T rows of activations, N outputs, K inputs; a word is eight weights (see primitives.py), W = K / 8 words a row.
A program takes BLOCK_N outputs. It loads the first BLOCK_W words of each, which depend on nothing, lets the next kernel
start to do the same, and only then waits for the previous one: the memory never idles between two kernels.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import dot_groups, start_next, wait_for_previous


@triton.jit(do_not_specialize=["rows"])
def matvec_int8_kernel(
    p_values,
    p_scale,
    p_weight,
    p_scales,
    p_residual,
    p_out,
    rows,
    N,
    W: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    PDL: tl.constexpr,
):
    """Multiply `rows` ≤ ROWS int8 rows with BLOCK_N weight rows; GROUP is in words, p_residual may be None."""
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    words, scales = load_weights(p_weight, p_scales, o_n, N, 0, W, BLOCK_W, GROUP)
    start_next(PDL)
    wait_for_previous(PDL)
    acc = load_residual(p_residual, o_n, rows, N, ROWS)
    acc = _multiply_int8(acc, words, scales, p_values, p_scale, 0, rows, ROWS, W, GROUP)
    for first_word in range(BLOCK_W, W, BLOCK_W):
        words, scales = load_weights(p_weight, p_scales, o_n, N, first_word, W, BLOCK_W, GROUP)
        acc = _multiply_int8(acc, words, scales, p_values, p_scale, first_word, rows, ROWS, W, GROUP)
    store_rows(acc, p_out, o_n, rows, N)


@triton.jit(do_not_specialize=["rows"])
def matvec_kernel(
    p_x,
    p_weight,
    p_scales,
    p_residual,
    p_out,
    rows,
    N,
    W: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    PDL: tl.constexpr,
):
    """Multiply `rows` ≤ ROWS floating-point rows with BLOCK_N weight rows; as matvec_int8_kernel otherwise."""
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    words, scales = load_weights(p_weight, p_scales, o_n, N, 0, W, BLOCK_W, GROUP)
    start_next(PDL)
    wait_for_previous(PDL)
    acc = load_residual(p_residual, o_n, rows, N, ROWS)
    acc = _multiply_float(acc, words, scales, p_x, 0, rows, ROWS, W, GROUP)
    for first_word in range(BLOCK_W, W, BLOCK_W):
        words, scales = load_weights(p_weight, p_scales, o_n, N, first_word, W, BLOCK_W, GROUP)
        acc = _multiply_float(acc, words, scales, p_x, first_word, rows, ROWS, W, GROUP)
    store_rows(acc, p_out, o_n, rows, N)


@triton.jit
def load_weights(p_weight, p_scales, o_n, N, first_word, W: tl.constexpr, BLOCK_W: tl.constexpr, GROUP: tl.constexpr):
    """Return words (BLOCK_N, BLOCK_W) from first_word on, and the scale of each group as float32; 0 past the row."""
    o_word = first_word + tl.arange(0, BLOCK_W)
    o_group = first_word // GROUP + tl.arange(0, BLOCK_W // GROUP)
    row = tl.minimum(o_n, N - 1).to(tl.int64)[:, None]
    words = tl.load(p_weight + row * W + o_word[None, :], mask=(o_word < W)[None, :], other=0)
    m_group = (o_group < W // GROUP)[None, :]
    scales = tl.load(p_scales + row * (W // GROUP) + o_group[None, :], mask=m_group, other=0.0)
    return words, scales.to(tl.float32)


@triton.jit
def _multiply_int8(
    acc,
    words,
    scales,
    p_values,
    p_scale,
    first_word,
    rows,
    ROWS: tl.constexpr,
    W: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Add the products of words with each of `rows` int8 rows to acc (ROWS, BLOCK_N)."""
    BLOCK_W: tl.constexpr = words.shape[1]
    o_word = first_word + tl.arange(0, BLOCK_W)
    o_group = first_word // GROUP + tl.arange(0, BLOCK_W // GROUP)
    o_t = tl.arange(0, ROWS)
    for t in tl.static_range(ROWS):
        m_t = t < rows
        p_row = p_values + t * (2 * W) + o_word
        even = tl.load(p_row, mask=(o_word < W) & m_t, other=0)
        odd = tl.load(p_row + W, mask=(o_word < W) & m_t, other=0)
        scale = tl.load(p_scale + t * (W // GROUP) + o_group, mask=(o_group < W // GROUP) & m_t, other=0.0)
        groups = dot_groups(words, even[None, :], odd[None, :], GROUP)
        y = tl.sum(groups * (scales * scale[None, :]), 1)
        acc += tl.where((o_t == t)[:, None], y[None, :], 0.0)
    return acc


@triton.jit
def _multiply_float(
    acc, words, scales, p_x, first_word, rows, ROWS: tl.constexpr, W: tl.constexpr, GROUP: tl.constexpr
):
    """Add the products of words with each of `rows` floating-point rows to acc (ROWS, BLOCK_N)."""
    BLOCK_N: tl.constexpr = words.shape[0]
    BLOCK_W: tl.constexpr = words.shape[1]
    o_word = first_word + tl.arange(0, BLOCK_W)
    o_t = tl.arange(0, ROWS)
    for t in tl.static_range(ROWS):
        products = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
        for i in tl.static_range(8):
            x = tl.load(p_x + t * (8 * W) + o_word * 8 + i, mask=(o_word < W) & (t < rows), other=0.0).to(tl.float32)
            # The nibble in the low bits of 2²³ is that float plus the nibble; no conversion instruction is needed.
            shifted = (((words >> (4 * i)) & 0xF) | 0x4B000000).to(tl.float32, bitcast=True)
            products += (shifted - 8388616.0) * x[None, :]
        groups = tl.sum(tl.reshape(products, (BLOCK_N, BLOCK_W // GROUP, GROUP)), 2)
        y = tl.sum(groups * scales, 1)
        acc += tl.where((o_t == t)[:, None], y[None, :], 0.0)
    return acc


@triton.jit
def load_residual(p_residual, o_n, rows, N, ROWS: tl.constexpr):
    """Return the residual (ROWS, BLOCK_N) as float32, zeros without one: what a sum begins with.

    It is asked for together with the activations; behind the products it would be waited for by itself.
    """
    BLOCK_N: tl.constexpr = o_n.shape[0]
    if p_residual is None:
        residual = tl.zeros((ROWS, BLOCK_N), tl.float32)
    else:
        o_t = tl.arange(0, ROWS).to(tl.int64)
        mask = (o_t < rows)[:, None] & (o_n < N)[None, :]
        residual = tl.load(p_residual + o_t[:, None] * N + o_n[None, :], mask=mask, other=0.0).to(tl.float32)
    return residual


@triton.jit
def store_rows(acc, p_out, o_n, rows, N):
    """Store acc (ROWS, BLOCK_N) to rows of out (rows, N)."""
    o_t = tl.arange(0, acc.shape[0]).to(tl.int64)
    mask = (o_t < rows)[:, None] & (o_n < N)[None, :]
    tl.store(p_out + o_t[:, None] * N + o_n[None, :], acc.to(p_out.dtype.element_ty), mask=mask)
