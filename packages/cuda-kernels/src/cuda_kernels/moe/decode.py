"""Expert products of a few tokens with int4 weights: two kernels, each reading the weights of a pair exactly once.

A pair is one slot of one token. `gate_up` computes h = silu(gate) · up of one pair and a few of its rows a program;
`down` computes a few output rows of one token a program, all its slots in one tile so that all loads are in flight.
With int8 activations products are four at a time (dp4a) and h is quantized by the tile that made it; otherwise
activations are floats of any width and h is float32.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import (
    dot_groups,
    dot_words,
    issue_loads,
    quantize_words,
    small_to_float,
    wait_for_previous,
)


@triton.jit
def _sum_units(products, UNIT: tl.constexpr):
    """Sum runs of UNIT words of products (N, …, W); return (N, …, W / UNIT) float32; integers are below 2²²."""
    N: tl.constexpr = products.shape[0]
    W: tl.constexpr = products.shape[-1]
    if UNIT > 1:
        if len(products.shape) == 2:
            products = tl.sum(tl.reshape(products, (N, W // UNIT, UNIT)), 2)
        else:
            products = tl.sum(tl.reshape(products, (N, products.shape[1], W // UNIT, UNIT)), 3)
    return small_to_float(products) if products.dtype == tl.int32 else products


@triton.jit
def _dot_floats(words, p_x, m_x):
    """Return Σ weight · activation over the eight elements of each word (…, N, W), float32; p_x and m_x (…, W)."""
    products = tl.zeros(words.shape, tl.float32)
    for j in tl.static_range(8):
        x = tl.load(p_x + j, mask=m_x, other=0.0).to(tl.float32)
        products += (((words >> (4 * j)) & 0xF) - 8).to(tl.float32) * tl.expand_dims(x, -2)
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
    GROUP_WORDS: tl.constexpr = GROUP // 8
    GROUPS: tl.constexpr = HIDDEN // GROUP
    pair = tl.program_id(0) // (WIDTH // BLOCK)
    first = tl.program_id(0) % (WIDTH // BLOCK) * BLOCK
    wait_for_previous(PDL)
    expert = tl.load(p_ids + pair)
    if (expert < 0) | (expert >= EXPERTS):
        return
    # Activations are loaded as vectors: a (1, W) tensor would be spread over the rows before its layout is changed.
    v_word = tl.arange(0, PADDED)
    v_group = tl.arange(0, PADDED // GROUP_WORDS)
    o_word, o_group = v_word[None, :], v_group[None, :]
    m_word = o_word < WORDS
    m_group = o_group < GROUPS
    # Gate rows and then up rows in one tile, so that all weights are asked for at once.
    o_row = tl.arange(0, 2 * BLOCK)
    row = (expert.to(tl.int64) * (2 * WIDTH) + first + o_row % BLOCK + o_row // BLOCK * WIDTH)[:, None]
    words = tl.load(p_weight + row * WORDS + o_word, mask=m_word, other=0)
    scale = tl.load(p_weight_scale + row * GROUPS + o_group, mask=m_group, other=0.0).to(tl.float32)

    token = (pair // SLOTS).to(tl.int64)
    if INT8:
        p_even = p_x + token * (2 * WORDS) + v_word
        odd = tl.load(p_even + WORDS, mask=v_word < WORDS, other=0)[None, :]
        x_scale = tl.load(p_x_scale + token * GROUPS + v_group, mask=v_group < GROUPS, other=0.0)[None, :]
        issue_loads(PDL)
        even = tl.load(p_even, mask=v_word < WORDS, other=0)[None, :]
        products = tl.sum(dot_groups(words, even, odd, GROUP_WORDS) * (scale * x_scale), 1)
    else:
        p_row = p_x + token * HIDDEN + v_word * 8
        products = tl.sum(_sum_units(_dot_floats(words, p_row, v_word < WORDS), GROUP_WORDS) * scale, 1)
    gate, up = tl.split(tl.permute(tl.reshape(products, (2, BLOCK)), (1, 0)))
    h = gate * tl.sigmoid(gate) * up

    h_row = pair.to(tl.int64)
    if INT8:
        even, odd, h_scale, _ = quantize_words(tl.reshape(h, (BLOCK // 8, 8)), BLOCK // 8)
        o_h = h_row * (WIDTH // 4) + first // 8 + tl.arange(0, BLOCK // 8)
        tl.store(p_h + o_h, even)
        tl.store(p_h + WIDTH // 8 + o_h, odd)
        tl.store(p_h_scale + h_row * (WIDTH // BLOCK) + first // BLOCK + tl.arange(0, 1), h_scale)
    else:
        tl.store(p_h + h_row * WIDTH + first + tl.arange(0, BLOCK), h)


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
    """Load BLOCK rows of COUNT slots: words (COUNT, BLOCK, PADDED), scale · router weight of groups, pairs, their mask.

    Slots are the first axis, over which Triton spreads warps before rows: a thread has many rows of a slot, and one h.
    """
    WORDS: tl.constexpr = WIDTH // 8
    GROUPS: tl.constexpr = WIDTH // GROUP
    slot = START + tl.arange(0, COUNT)
    expert = tl.load(p_ids + token * SLOTS + slot, mask=slot < SLOTS, other=-1, cache_modifier=".cg")
    m_slot = (expert >= 0) & (expert < EXPERTS)
    row = (expert.to(tl.int64) * HIDDEN + first)[:, None, None] + tl.arange(0, BLOCK)[None, :, None]
    o_word = tl.arange(0, PADDED)[None, None, :]
    o_group = tl.arange(0, PADDED * 8 // GROUP)[None, None, :]
    m_rows = m_slot[:, None, None]
    words = tl.load(p_weight + row * WORDS + o_word, mask=m_rows & (o_word < WORDS), other=0)
    scale = tl.load(p_weight_scale + row * GROUPS + o_group, mask=m_rows & (o_group < GROUPS), other=0.0)
    routed = tl.load(p_weights + token * SLOTS + slot, mask=m_slot, other=0.0, cache_modifier=".cg")
    return words, scale.to(tl.float32) * routed[:, None, None], token * SLOTS + slot, m_slot


@triton.jit
def _load_plane(p_h, pair, m_slot, PLANE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load the even (PLANE 0) or odd (1) words of the int8 h of each pair: (COUNT, 1, PADDED)."""
    WORDS: tl.constexpr = WIDTH // 8
    o_word = tl.arange(0, PADDED)[None, :]
    p_word = p_h + pair[:, None] * (2 * WORDS) + PLANE * WORDS + o_word
    return tl.load(p_word, mask=m_slot[:, None] & (o_word < WORDS), other=0)[:, None, :]


@triton.jit
def _load_h_scale(p_h_scale, pair, m_slot, WIDTH: tl.constexpr, H_BLOCK: tl.constexpr, PADDED: tl.constexpr):
    """Load the scale of each H_BLOCK elements of h of each pair, times 1/16: (COUNT, 1, units)."""
    o_unit = tl.arange(0, PADDED * 8 // H_BLOCK)[None, :]
    p_scale = p_h_scale + pair[:, None] * (WIDTH // H_BLOCK) + o_unit
    return tl.load(p_scale, mask=m_slot[:, None] & (o_unit < WIDTH // H_BLOCK), other=0.0)[:, None, :] * 0.0625


@triton.jit
def _sum_slots(units, factor, UNIT: tl.constexpr, GROUP: tl.constexpr):
    """Sum units (COUNT, BLOCK, W) of UNIT words over groups, times the factor of each, over groups and slots: (BLOCK,).

    Words are summed before the scale is applied: scales of all words would have to change their layout.
    """
    groups = _sum_units(units, GROUP // 8 // UNIT) * factor
    return tl.sum(tl.sum(groups, 2), 0)


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
    """Compute BLOCK outputs of one token from two tiles, of its first MOST slots and of the REST.

    MOST is the largest power of two up to SLOTS, REST one from the remaining slots up or 0; PADDED is one from the
    WIDTH / 8 words of a row up.
    """
    token = (tl.program_id(0) // (HIDDEN // BLOCK)).to(tl.int64)
    first = tl.program_id(0) % (HIDDEN // BLOCK) * BLOCK
    # Ids and router weights are two kernels old: `gate_up` waited for them before this kernel could start.
    words, factor, pair, m_slot = _load_slots(
        p_weights, p_ids, p_weight, p_weight_scale, token, first,
        EXPERTS, SLOTS, HIDDEN, WIDTH, GROUP, 0, MOST, BLOCK, PADDED,
    )  # fmt: skip
    if REST > 0:
        rest_words, rest_factor, rest_pair, m_rest = _load_slots(
            p_weights, p_ids, p_weight, p_weight_scale, token, first,
            EXPERTS, SLOTS, HIDDEN, WIDTH, GROUP, MOST, REST, BLOCK, PADDED,
        )  # fmt: skip
    wait_for_previous(PDL)
    # Together with h: a load behind the products would be waited for by itself.
    o_out = token * HIDDEN + first + tl.arange(0, BLOCK)
    if p_residual is not None:
        residual = tl.load(p_residual + o_out).to(tl.float32)
    if INT8:
        UNIT: tl.constexpr = H_BLOCK // 8
        odd = _load_plane(p_h, pair, m_slot, 1, WIDTH, PADDED)
        scale = _load_h_scale(p_h_scale, pair, m_slot, WIDTH, H_BLOCK, PADDED)
        if REST > 0:
            rest_even = _load_plane(p_h, rest_pair, m_rest, 0, WIDTH, PADDED)
            rest_odd = _load_plane(p_h, rest_pair, m_rest, 1, WIDTH, PADDED)
            rest_scale = _load_h_scale(p_h_scale, rest_pair, m_rest, WIDTH, H_BLOCK, PADDED)
        issue_loads(PDL)
        even = _load_plane(p_h, pair, m_slot, 0, WIDTH, PADDED)
        result = _sum_slots(_sum_units(dot_words(words, even, odd), UNIT) * scale, factor, UNIT, GROUP)
        if REST > 0:
            units = _sum_units(dot_words(rest_words, rest_even, rest_odd), UNIT) * rest_scale
            result += _sum_slots(units, rest_factor, UNIT, GROUP)
    else:
        o_word = tl.arange(0, PADDED)[None, :]
        m_word = m_slot[:, None] & (o_word < WIDTH // 8)
        products = _dot_floats(words, p_h + pair[:, None] * WIDTH + o_word * 8, m_word)
        result = _sum_slots(products, factor, 1, GROUP)
        if REST > 0:
            m_word = m_rest[:, None] & (o_word < WIDTH // 8)
            products = _dot_floats(rest_words, p_h + rest_pair[:, None] * WIDTH + o_word * 8, m_word)
            result += _sum_slots(products, rest_factor, 1, GROUP)
    if p_residual is not None:
        result += residual
    tl.store(p_out + o_out, result.to(p_out.dtype.element_ty))
