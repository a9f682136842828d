"""Expert products of many tokens on the tensor cores: pairs sorted by expert, weights left, pairs right.

`gate_up_blocks` multiplies a block of pairs of one expert with gate and up rows in one tile and applies SwiGLU;
`down_blocks` multiplies h with rows of the down projection and scales by the router's weight. Weights are int4, taken
apart in registers, or dense. Activations are int8, with one scale a step of the product, or floats.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import dequantize_packed, split_nibbles, wait_for_previous

_MAGIC_BITS = tl.constexpr(0x4B400000)  # 1.5 · 2²³ as float32: added to an integer below 2²², it makes a float
_MAGIC = tl.constexpr(12582912.0)


@triton.jit
def _load_scale(p_scale, row, group, GROUPS: tl.constexpr):
    """Return the scales of `group` of rows (R,) as they are; 16-bit ones come in pairs, which a copy can take."""
    if p_scale.dtype.element_ty.primitive_bitwidth == 16 and GROUPS % 2 == 0:
        word = tl.load(p_scale.to(tl.pointer_type(tl.int32)) + row * (GROUPS // 2) + group // 2)
        scale = (word >> (group % 2 * 16)).to(tl.int16).to(p_scale.dtype.element_ty, bitcast=True)
    else:
        scale = tl.load(p_scale + row * GROUPS + group)
    return scale


@triton.jit
def _add_product(
    acc,
    p_weight,
    p_weight_scale,
    row,
    step,
    x,
    x_odd,
    x_scale,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    KIND: tl.constexpr,
):
    """Return acc (R, B) plus STEP columns of rows `row` (R,) of a weight of K columns times x (STEP, B).

    With KIND "int8" x and x_odd are the even and odd planes (STEP / 2, B) and share x_scale (B,); the sum is 16 times
    the product, as `split_nibbles` gives weights.
    """
    if KIND == "dense":
        weight = tl.load(p_weight + row[:, None] * K + step * STEP + tl.arange(0, STEP)[None, :])
        acc = tl.dot(weight, x, acc, input_precision="tf32x3")
    else:
        o_byte = step * (STEP // 2) + tl.arange(0, STEP // 2)
        packed = tl.load(p_weight + row[:, None] * (K // 2) + o_byte[None, :])
        scale = _load_scale(p_weight_scale, row, step * STEP // GROUP, K // GROUP)
        if KIND == "int4":
            acc = tl.dot(dequantize_packed(packed, scale, x.dtype), x, acc, input_precision="tf32x3")
        else:
            even, odd = split_nibbles(packed)
            products = tl.dot(even, x, out_dtype=tl.int32)
            products = tl.dot(odd, x_odd, products, out_dtype=tl.int32)
            # An integer becomes a float by two full-rate instructions; a conversion has a quarter of the rate.
            shifted = (products + _MAGIC_BITS).to(tl.float32, bitcast=True)
            acc += (shifted * x_scale[None, :] - _MAGIC * x_scale[None, :]) * scale.to(tl.float32)[:, None]
    return acc


@triton.jit
def _multiply(
    p_weight,
    p_weight_scale,
    row_a,
    row_b,
    p_x,
    o_x,
    p_x_scale,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    KIND: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Return two products (R, B) float32: rows row_a and row_b (R,) of an expert times activations at o_x (B,).

    Two halves of a tile, one after the other, need fewer registers than the whole. KIND is "int8" (int4 weights, int8
    planes whose STEP columns share a scale, p_x_scale (K / STEP, B)), "int4" (int4 weights, floating-point
    activations) or "dense". STEP divides the weight's group.
    """
    R: tl.constexpr = row_a.shape[0]
    B: tl.constexpr = o_x.shape[0]
    acc_a = tl.zeros((R, B), tl.float32)
    acc_b = tl.zeros((R, B), tl.float32)
    # With two steps a round both halves of a 128-byte line of weights are asked for together.
    ROUND: tl.constexpr = STEPS if K // STEP % STEPS == 0 else 1
    for start in tl.range(0, K // STEP, ROUND, num_stages=STAGES):
        for offset in tl.static_range(ROUND):
            step = start + offset
            if KIND == "int8":
                p_even = p_x + o_x[None, :] + step * (STEP // 2) + tl.arange(0, STEP // 2)[:, None]
                x = tl.load(p_even)
                x_odd = tl.load(p_even + K // 2)
                x_scale = tl.load(p_x_scale + step * B + tl.arange(0, B))
            else:
                x = tl.load(p_x + o_x[None, :] + step * STEP + tl.arange(0, STEP)[:, None])
                x_odd, x_scale = x, None
            acc_a = _add_product(acc_a, p_weight, p_weight_scale, row_a, step, x, x_odd, x_scale, K, GROUP, STEP, KIND)
            acc_b = _add_product(acc_b, p_weight, p_weight_scale, row_b, step, x, x_odd, x_scale, K, GROUP, STEP, KIND)
    if KIND == "int8":
        acc_a *= 0.0625
        acc_b *= 0.0625
    return acc_a, acc_b


@triton.jit(do_not_specialize=["pairs"])
def gate_up_blocks(
    p_x,
    p_x_scale,
    p_weight,
    p_weight_scale,
    p_sorted,
    p_expert,
    p_h,
    p_h_scale,
    pairs,
    SLOTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    KIND: tl.constexpr,
    PAIR_BLOCK: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute ROW_BLOCK elements of h (C, WIDTH) of PAIR_BLOCK sorted pairs; int8 h is quantized over these elements.

    p_x_scale: (blocks, HIDDEN / STEP, PAIR_BLOCK); p_h_scale: (blocks, WIDTH / ROW_BLOCK, PAIR_BLOCK).
    """
    block = tl.program_id(0) // (WIDTH // ROW_BLOCK)
    first = tl.program_id(0) % (WIDTH // ROW_BLOCK) * ROW_BLOCK
    wait_for_previous(PDL)
    expert = tl.load(p_expert + block).to(tl.int64)
    pair = tl.load(p_sorted + block * PAIR_BLOCK + tl.arange(0, PAIR_BLOCK))
    if expert < 0:
        return
    # Padding computes the first token again, into rows that nobody reads.
    token = tl.where(pair < pairs, pair // SLOTS, 0).to(tl.int64)

    o_h = tl.arange(0, ROW_BLOCK)
    row = first + o_h
    if KIND == "int8":  # h is stored in planes, even elements first
        row = first + o_h % (ROW_BLOCK // 2) * 2 + o_h // (ROW_BLOCK // 2)
    gate, up = _multiply(
        p_weight + expert * (2 * WIDTH * (HIDDEN if KIND == "dense" else HIDDEN // 2)),
        p_weight_scale + expert * (2 * WIDTH * (HIDDEN // GROUP)) if KIND != "dense" else None,
        row,
        row + WIDTH,
        p_x,
        token * HIDDEN,
        p_x_scale + block.to(tl.int64) * (HIDDEN // STEP * PAIR_BLOCK) if KIND == "int8" else None,
        HIDDEN,
        GROUP,
        STEP,
        KIND,
        STEPS,
        STAGES,
    )
    h = gate * tl.sigmoid(gate) * up

    o_pair = tl.arange(0, PAIR_BLOCK)
    p_block = p_h + block.to(tl.int64) * (PAIR_BLOCK * WIDTH) + o_pair[None, :] * WIDTH
    if KIND == "int8":
        largest = tl.maximum(tl.max(tl.abs(h), 0), 1e-30)
        shifted = h * (127.0 / largest)[None, :] + _MAGIC
        values = (shifted.to(tl.int32, bitcast=True) & 0xFF).to(tl.int8)
        o_plane = o_h // (ROW_BLOCK // 2) * (WIDTH // 2) + first // 2 + o_h % (ROW_BLOCK // 2)
        tl.store(p_block + o_plane[:, None], values)
        o_scale = block.to(tl.int64) * (WIDTH // ROW_BLOCK) + first // ROW_BLOCK
        tl.store(p_h_scale + o_scale * PAIR_BLOCK + o_pair, largest / 127.0)
    else:
        tl.store(p_block + first + o_h[:, None], h.to(p_h.dtype.element_ty))


@triton.jit(do_not_specialize=["pairs"])
def down_blocks(
    p_h,
    p_h_scale,
    p_weight,
    p_weight_scale,
    p_sorted,
    p_expert,
    p_weights,
    p_y,
    pairs,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    KIND: tl.constexpr,
    PAIR_BLOCK: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute ROW_BLOCK outputs of PAIR_BLOCK pairs, times the router's weight of the pair."""
    BLOCKS: tl.constexpr = (HIDDEN + ROW_BLOCK - 1) // ROW_BLOCK
    block = tl.program_id(0) // BLOCKS
    first = tl.program_id(0) % BLOCKS * ROW_BLOCK
    # The routing is two kernels old.
    expert = tl.load(p_expert + block, cache_modifier=".cg").to(tl.int64)
    wait_for_previous(PDL)
    if expert < 0:
        return
    # Rows past the end repeat the last one and are not stored.
    o_a = first + tl.arange(0, ROW_BLOCK // 2)
    o_b = o_a + ROW_BLOCK // 2
    y_a, y_b = _multiply(
        p_weight + expert * (HIDDEN * (WIDTH if KIND == "dense" else WIDTH // 2)),
        p_weight_scale + expert * (HIDDEN * (WIDTH // GROUP)) if KIND != "dense" else None,
        tl.minimum(o_a, HIDDEN - 1),
        tl.minimum(o_b, HIDDEN - 1),
        p_h + block.to(tl.int64) * (PAIR_BLOCK * WIDTH),
        tl.arange(0, PAIR_BLOCK) * WIDTH,
        p_h_scale + block.to(tl.int64) * (WIDTH // STEP * PAIR_BLOCK) if KIND == "int8" else None,
        WIDTH,
        GROUP,
        STEP,
        KIND,
        STEPS,
        STAGES,
    )
    pair = tl.load(p_sorted + block * PAIR_BLOCK + tl.arange(0, PAIR_BLOCK))
    m_pair = pair < pairs
    routed = tl.load(p_weights + pair, mask=m_pair, other=0.0)
    p_row = p_y + pair.to(tl.int64)[None, :] * HIDDEN
    y_a = (y_a * routed[None, :]).to(p_y.dtype.element_ty)
    y_b = (y_b * routed[None, :]).to(p_y.dtype.element_ty)
    tl.store(p_row + o_a[:, None], y_a, mask=m_pair[None, :] & (o_a < HIDDEN)[:, None])
    tl.store(p_row + o_b[:, None], y_b, mask=m_pair[None, :] & (o_b < HIDDEN)[:, None])
