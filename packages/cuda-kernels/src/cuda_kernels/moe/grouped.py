"""Expert products of many tokens on the tensor cores: pairs sorted by expert, weights left, pairs right.

`gate_up_blocks` multiplies a block of pairs of one expert with gate and up rows in one tile and applies SwiGLU;
`down_blocks` multiplies h with rows of the down projection and scales by the router's weight; `combine` adds the slots
of a token in order. Weights are int4, taken apart in registers, or dense. Activations are int8, with one scale a step
of the product, or floats.
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
        return (word >> (group % 2 * 16)).to(tl.int16).to(p_scale.dtype.element_ty, bitcast=True)
    return tl.load(p_scale + row * GROUPS + group)


@triton.jit
def _multiply(
    p_weight,
    p_weight_scale,
    row,
    p_x,
    o_x,
    p_x_scale,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    KIND: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Return (R, B) float32: rows `row` (R,) of a weight of K columns times activations at o_x (B,), STEP a time.

    KIND is "int8" (int4 weights, int8 planes whose STEP columns share a scale, p_x_scale (K / STEP, B)), "int4" (int4
    weights, floating-point activations) or "dense". STEP divides the weight's group.
    """
    R: tl.constexpr = row.shape[0]
    B: tl.constexpr = o_x.shape[0]
    acc = tl.zeros((R, B), tl.float32)
    o_step = tl.arange(0, STEP)
    o_half = tl.arange(0, STEP // 2)
    for step in tl.range(0, K // STEP, num_stages=STAGES):
        if KIND == "dense":
            weight = tl.load(p_weight + row[:, None] * K + step * STEP + o_step[None, :])
        else:
            packed = tl.load(p_weight + row[:, None] * (K // 2) + step * (STEP // 2) + o_half[None, :])
            scale = _load_scale(p_weight_scale, row, step * STEP // GROUP, K // GROUP)
        if KIND == "int8":
            p_even = p_x + o_x[None, :] + step * (STEP // 2) + o_half[:, None]
            x_even = tl.load(p_even)
            x_odd = tl.load(p_even + K // 2)
            x_scale = tl.load(p_x_scale + step * B + tl.arange(0, B))
            even, odd = split_nibbles(packed)
            products = tl.dot(even, x_even, out_dtype=tl.int32)
            products = tl.dot(odd, x_odd, products, out_dtype=tl.int32)
            # An integer becomes a float by two full-rate instructions; a conversion has a quarter of the rate.
            shifted = (products + _MAGIC_BITS).to(tl.float32, bitcast=True)
            acc += (shifted * x_scale[None, :] - _MAGIC * x_scale[None, :]) * scale.to(tl.float32)[:, None]
        else:
            x = tl.load(p_x + o_x[None, :] + step * STEP + o_step[:, None])
            if KIND == "int4":
                weight = dequantize_packed(packed, scale, p_x.dtype.element_ty)
            acc = tl.dot(weight, x, acc, input_precision="tf32x3")
    # `split_nibbles` gives 16 times the weights.
    return acc * 0.0625 if KIND == "int8" else acc


@triton.jit(do_not_specialize=["pairs"])
def gate_up_blocks(
    p_x,
    p_x_scale,
    p_weight,
    p_weight_scale,
    p_sorted,
    p_expert,
    p_padded,
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
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute ROW_BLOCK elements of h (C, WIDTH) of PAIR_BLOCK sorted pairs; int8 h is quantized over these elements.

    p_x_scale: (blocks, HIDDEN / STEP, PAIR_BLOCK); p_h_scale: (blocks, WIDTH / ROW_BLOCK, PAIR_BLOCK).
    """
    block = tl.program_id(0) // (WIDTH // ROW_BLOCK)
    first = tl.program_id(0) % (WIDTH // ROW_BLOCK) * ROW_BLOCK
    wait_for_previous(PDL)
    if block * PAIR_BLOCK >= tl.load(p_padded):
        return
    expert = tl.load(p_expert + block).to(tl.int64)
    pair = tl.load(p_sorted + block * PAIR_BLOCK + tl.arange(0, PAIR_BLOCK))
    # Padding computes the first token again, into rows that nobody reads.
    token = tl.where(pair < pairs, pair // SLOTS, 0).to(tl.int64)

    # Even elements of h before odd ones where h is stored in planes; gate and up alternate every eight rows, which one
    # thread holds together.
    o_tile = tl.arange(0, 2 * ROW_BLOCK)
    o_element = o_tile // 16 * 8 + o_tile % 8
    if KIND == "int8":
        o_element = o_element % (ROW_BLOCK // 2) * 2 + o_element // (ROW_BLOCK // 2)
    row = expert * (2 * WIDTH) + o_tile // 8 % 2 * WIDTH + first + o_element
    products = _multiply(
        p_weight,
        p_weight_scale,
        row,
        p_x,
        token * HIDDEN,
        p_x_scale + block.to(tl.int64) * (HIDDEN // STEP * PAIR_BLOCK) if KIND == "int8" else None,
        HIDDEN,
        GROUP,
        STEP,
        KIND,
        STAGES,
    )
    halves = tl.permute(tl.reshape(products, (ROW_BLOCK // 8, 2, 8, PAIR_BLOCK)), (0, 2, 3, 1))
    gate, up = tl.split(halves)
    h = tl.reshape(gate * tl.sigmoid(gate) * up, (ROW_BLOCK, PAIR_BLOCK))

    o_h = tl.arange(0, ROW_BLOCK)
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
    p_padded,
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
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute ROW_BLOCK outputs of PAIR_BLOCK pairs, times the router's weight of the pair."""
    BLOCKS: tl.constexpr = (HIDDEN + ROW_BLOCK - 1) // ROW_BLOCK
    block = tl.program_id(0) // BLOCKS
    first = tl.program_id(0) % BLOCKS * ROW_BLOCK
    # The routing is two kernels old.
    if block * PAIR_BLOCK >= tl.load(p_padded):
        return
    expert = tl.load(p_expert + block).to(tl.int64)
    pair = tl.load(p_sorted + block * PAIR_BLOCK + tl.arange(0, PAIR_BLOCK))
    m_pair = pair < pairs
    routed = tl.load(p_weights + pair, mask=m_pair, other=0.0)
    wait_for_previous(PDL)
    o_row = first + tl.arange(0, ROW_BLOCK)
    # Rows past the end repeat the last one and are not stored.
    row = expert * HIDDEN + tl.minimum(o_row, HIDDEN - 1)
    o_h = (block.to(tl.int64) * PAIR_BLOCK + tl.arange(0, PAIR_BLOCK)) * WIDTH
    products = _multiply(
        p_weight,
        p_weight_scale,
        row,
        p_h,
        o_h,
        p_h_scale + block.to(tl.int64) * (WIDTH // STEP * PAIR_BLOCK) if KIND == "int8" else None,
        WIDTH,
        GROUP,
        STEP,
        KIND,
        STAGES,
    )
    p_tile = p_y + pair.to(tl.int64)[None, :] * HIDDEN + o_row[:, None]
    result = (products * routed[None, :]).to(p_y.dtype.element_ty)
    tl.store(p_tile, result, mask=m_pair[None, :] & (o_row < HIDDEN)[:, None])


@triton.jit
def combine(
    p_y,
    p_ids,
    p_residual,
    p_out,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Add the rows of one token's slots whose expert is known, and the residual."""
    BLOCKS: tl.constexpr = (HIDDEN + BLOCK - 1) // BLOCK
    token = (tl.program_id(0) // BLOCKS).to(tl.int64)
    column = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    m_column = column < HIDDEN
    wait_for_previous(PDL)
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(SLOTS):
        expert = tl.load(p_ids + token * SLOTS + slot)
        known = m_column & (expert >= 0) & (expert < EXPERTS)
        total += tl.load(p_y + (token * SLOTS + slot) * HIDDEN + column, mask=known, other=0.0).to(tl.float32)
    if p_residual is not None:
        total += tl.load(p_residual + token * HIDDEN + column, mask=m_column, other=0.0).to(tl.float32)
    tl.store(p_out + token * HIDDEN + column, total.to(p_out.dtype.element_ty), mask=m_column)
