"""Expert products of a few tokens with int4 weights: two kernels, each reading the weights of a pair exactly once.

A pair is one slot of one token. `gate_up` computes h = silu(gate) · up of one pair and a few of its rows a program;
`down` computes a few output rows of one token a program, all its slots in one tile so that all loads are in flight.
With int8 activations products are four at a time (dp4a) and h is quantized by the tile that made it; otherwise
activations are floats of any width and h is float32.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import dot_words, quantize_words, small_to_float, wait_for_previous

# Words that a thread loads at once and that share a scale: a group has four or more.
RUN: tl.constexpr = tl.constexpr(4)


@triton.jit
def _sum_units(products, UNIT: tl.constexpr):
    """Sum runs of UNIT words of products (N, W); return (N, W / UNIT) float32; integers are below 2²²."""
    N: tl.constexpr = products.shape[0]
    W: tl.constexpr = products.shape[1]
    sums = tl.sum(tl.reshape(products, (N, W // UNIT, UNIT)), 2) if UNIT > 1 else products
    return small_to_float(sums) if products.dtype == tl.int32 else sums


@triton.jit
def _dot_floats(words, p_x, m_x):
    """Return Σ weight · activation over the eight elements of each word (N, W), float32; p_x and m_x (W,) or (N, W)."""
    products = tl.zeros(words.shape, tl.float32)
    for j in tl.static_range(8):
        x = tl.load(p_x + j, mask=m_x, other=0.0).to(tl.float32)
        if len(x.shape) == 1:
            x = x[None, :]
        products += (((words >> (4 * j)) & 0xF) - 8).to(tl.float32) * x
    return products


@triton.jit
def gate_up(
    p_x,
    p_x_scale,
    p_ids,
    p_weight,
    p_weight_scale,
    p_h,
    p_h_scale,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    INT8: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute BLOCK elements of h of one pair; PADDED is the power of two from HIDDEN / 8 words up."""
    WORDS: tl.constexpr = HIDDEN // 8
    pair = tl.program_id(0) // (WIDTH // BLOCK)
    first = tl.program_id(0) % (WIDTH // BLOCK) * BLOCK
    wait_for_previous(PDL)
    expert = tl.load(p_ids + pair)
    if (expert < 0) | (expert >= EXPERTS):
        return
    # Activations are loaded as vectors: a (1, W) tensor would be spread over the rows before its layout is changed.
    v_word = tl.arange(0, PADDED)
    v_run = tl.arange(0, PADDED // RUN)
    o_word, o_run = v_word[None, :], v_run[None, :]
    m_word = o_word < WORDS
    m_run = o_run < WORDS // RUN
    gate_row = (expert.to(tl.int64) * (2 * WIDTH) + first + tl.arange(0, BLOCK))[:, None]
    up_row = gate_row + WIDTH
    gate_words = tl.load(p_weight + gate_row * WORDS + o_word, mask=m_word, other=0)
    up_words = tl.load(p_weight + up_row * WORDS + o_word, mask=m_word, other=0)
    o_scale = o_run * (8 * RUN) // GROUP
    gate_scale = tl.load(p_weight_scale + gate_row * (HIDDEN // GROUP) + o_scale, mask=m_run, other=0.0).to(tl.float32)
    up_scale = tl.load(p_weight_scale + up_row * (HIDDEN // GROUP) + o_scale, mask=m_run, other=0.0).to(tl.float32)

    token = (pair // SLOTS).to(tl.int64)
    if INT8:
        p_even = p_x + token * (2 * WORDS) + v_word
        even = tl.load(p_even, mask=v_word < WORDS, other=0)[None, :]
        odd = tl.load(p_even + WORDS, mask=v_word < WORDS, other=0)[None, :]
        p_run = p_x_scale + token * (HIDDEN // GROUP) + v_run * (8 * RUN) // GROUP
        x_scale = tl.load(p_run, mask=v_run < WORDS // RUN, other=0.0)[None, :] * 0.0625
        gate = tl.sum(_sum_units(dot_words(gate_words, even, odd), RUN) * (gate_scale * x_scale), 1)
        up = tl.sum(_sum_units(dot_words(up_words, even, odd), RUN) * (up_scale * x_scale), 1)
    else:
        p_row = p_x + token * HIDDEN + v_word * 8
        gate = tl.sum(_sum_units(_dot_floats(gate_words, p_row, v_word < WORDS), RUN) * gate_scale, 1)
        up = tl.sum(_sum_units(_dot_floats(up_words, p_row, v_word < WORDS), RUN) * up_scale, 1)
    h = gate * tl.sigmoid(gate) * up

    row = pair.to(tl.int64)
    if INT8:
        even, odd, scale, _ = quantize_words(tl.reshape(h, (BLOCK // 8, 8)), BLOCK // 8)
        o_h = row * (WIDTH // 4) + first // 8 + tl.arange(0, BLOCK // 8)
        tl.store(p_h + o_h, even)
        tl.store(p_h + WIDTH // 8 + o_h, odd)
        tl.store(p_h_scale + row * (WIDTH // BLOCK) + first // BLOCK + tl.arange(0, 1), scale)
    else:
        tl.store(p_h + row * WIDTH + first + tl.arange(0, BLOCK), h)


@triton.jit
def _load_slots(
    p_weights,
    p_ids,
    p_weight,
    p_weight_scale,
    token,
    first,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    START: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Load BLOCK rows of COUNT slots; return words, scale · router weight of runs, slot and mask of each row."""
    WORDS: tl.constexpr = WIDTH // 8
    o_row = tl.arange(0, COUNT * BLOCK)
    slot = START + o_row // BLOCK
    expert = tl.load(p_ids + token * SLOTS + slot, mask=slot < SLOTS, other=-1, cache_modifier=".cg")
    m_slot = (expert >= 0) & (expert < EXPERTS)
    row = (expert.to(tl.int64) * HIDDEN + first + o_row % BLOCK)[:, None]
    o_word = tl.arange(0, PADDED)[None, :]
    o_run = tl.arange(0, PADDED // RUN)[None, :]
    words = tl.load(p_weight + row * WORDS + o_word, mask=m_slot[:, None] & (o_word < WORDS), other=0)
    p_scale = p_weight_scale + row * (WIDTH // GROUP) + o_run * (8 * RUN) // GROUP
    scale = tl.load(p_scale, mask=m_slot[:, None] & (o_run < WORDS // RUN), other=0.0).to(tl.float32)
    routed = tl.load(p_weights + token * SLOTS + slot, mask=m_slot, other=0.0, cache_modifier=".cg")
    return words, scale * routed[:, None], slot, m_slot


@triton.jit
def _dot_slots(
    words,
    factor,
    pair,
    m_slot,
    p_h,
    p_h_scale,
    WIDTH: tl.constexpr,
    H_BLOCK: tl.constexpr,
    INT8: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Return the sum (BLOCK,) over COUNT slots of words (COUNT · BLOCK, PADDED) times h of `pair` of each row.

    With int8 activations H_BLOCK elements of h share a scale: units of at most RUN words.
    """
    WORDS: tl.constexpr = WIDTH // 8
    UNIT: tl.constexpr = min(RUN, H_BLOCK // 8)
    PADDED: tl.constexpr = words.shape[1]
    o_word = tl.arange(0, PADDED)[None, :]
    m_word = m_slot[:, None] & (o_word < WORDS)
    if INT8:
        p_even = p_h + pair[:, None] * (2 * WORDS) + o_word
        even = tl.load(p_even, mask=m_word, other=0)
        odd = tl.load(p_even + WORDS, mask=m_word, other=0)
        o_unit = tl.arange(0, PADDED // UNIT)[None, :]
        p_scale = p_h_scale + pair[:, None] * (WIDTH // H_BLOCK) + o_unit * (8 * UNIT) // H_BLOCK
        h_scale = tl.load(p_scale, mask=m_slot[:, None] & (o_unit < WORDS // UNIT), other=0.0)
        units = _sum_units(dot_words(words, even, odd), UNIT) * (h_scale * 0.0625)
        runs = _sum_units(units, RUN // UNIT)
    else:
        runs = _sum_units(_dot_floats(words, p_h + pair[:, None] * WIDTH + o_word * 8, m_word), RUN)
    rows = tl.sum(runs * factor, 1)
    return tl.sum(tl.reshape(rows, (COUNT, rows.shape[0] // COUNT)), 0)


@triton.jit
def down(
    p_h,
    p_h_scale,
    p_weights,
    p_ids,
    p_weight,
    p_weight_scale,
    p_residual,
    p_out,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    INT8: tl.constexpr,
    H_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    MOST: tl.constexpr,
    REST: tl.constexpr,
    PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute BLOCK outputs of one token; its slots are the rows of two tiles, of MOST and of REST slots.

    MOST is the largest power of two up to SLOTS, REST one from the remaining slots up or 0; PADDED is one from the
    WIDTH / 8 words of a row up.
    """
    token = (tl.program_id(0) // (HIDDEN // BLOCK)).to(tl.int64)
    first = tl.program_id(0) % (HIDDEN // BLOCK) * BLOCK
    # Ids and router weights are two kernels old: `gate_up` waited for them before this kernel could start.
    words, factor, slot, m_slot = _load_slots(
        p_weights,
        p_ids,
        p_weight,
        p_weight_scale,
        token,
        first,
        EXPERTS,
        SLOTS,
        HIDDEN,
        WIDTH,
        GROUP,
        0,
        MOST,
        BLOCK,
        PADDED,
    )
    if REST > 0:
        rest_words, rest_factor, rest_slot, m_rest = _load_slots(
            p_weights,
            p_ids,
            p_weight,
            p_weight_scale,
            token,
            first,
            EXPERTS,
            SLOTS,
            HIDDEN,
            WIDTH,
            GROUP,
            MOST,
            REST,
            BLOCK,
            PADDED,
        )
    wait_for_previous(PDL)
    # Together with h: a load behind the products would be waited for by itself.
    o_out = token * HIDDEN + first + tl.arange(0, BLOCK)
    result = tl.zeros((BLOCK,), tl.float32)
    if p_residual is not None:
        result = tl.load(p_residual + o_out).to(tl.float32)
    pair = token * SLOTS
    result += _dot_slots(words, factor, pair + slot, m_slot, p_h, p_h_scale, WIDTH, H_BLOCK, INT8, MOST)
    if REST > 0:
        rest_pair = pair + rest_slot
        result += _dot_slots(rest_words, rest_factor, rest_pair, m_rest, p_h, p_h_scale, WIDTH, H_BLOCK, INT8, REST)
    tl.store(p_out + o_out, result.to(p_out.dtype.element_ty))
