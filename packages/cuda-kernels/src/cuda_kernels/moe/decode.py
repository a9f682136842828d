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
def load_gate_up(
    p_weight,
    p_weight_scale,
    expert,
    first,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Load BLOCK rows of the gate and then of up in one tile, so that all are asked for at once: words and scales."""
    WORDS: tl.constexpr = HIDDEN // 8
    GROUPS: tl.constexpr = HIDDEN // GROUP
    o_word = tl.arange(0, PADDED)[None, :]
    o_group = tl.arange(0, PADDED * 8 // GROUP)[None, :]
    o_row = tl.arange(0, 2 * BLOCK)
    row = (expert.to(tl.int64) * (2 * WIDTH) + first + o_row % BLOCK + o_row // BLOCK * WIDTH)[:, None]
    words = tl.load(p_weight + row * WORDS + o_word, mask=o_word < WORDS, other=0)
    scale = tl.load(p_weight_scale + row * GROUPS + o_group, mask=o_group < GROUPS, other=0.0)
    return words, scale.to(tl.float32)


@triton.jit
def store_h(products, p_h, p_h_scale, pair, first, WIDTH: tl.constexpr, BLOCK: tl.constexpr, INT8: tl.constexpr):
    """Store silu(gate) · up of products (2 · BLOCK,) of a pair; as int8 with one scale, or as float32."""
    gate, up = tl.split(tl.permute(tl.reshape(products, (2, BLOCK)), (1, 0)))
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
    words, scale = load_gate_up(p_weight, p_weight_scale, expert, first, HIDDEN, WIDTH, GROUP, BLOCK, PADDED)
    # Activations are loaded as vectors: a (1, W) tensor would be spread over the rows before its layout is changed.
    o_word = tl.arange(0, PADDED)
    o_group = tl.arange(0, PADDED // GROUP_WORDS)
    token = (pair // SLOTS).to(tl.int64)
    if INT8:
        p_even = p_x + token * (2 * WORDS) + o_word
        odd = tl.load(p_even + WORDS, mask=o_word < WORDS, other=0)[None, :]
        x_scale = tl.load(p_x_scale + token * GROUPS + o_group, mask=o_group < GROUPS, other=0.0)[None, :]
        issue_loads(PDL)
        even = tl.load(p_even, mask=o_word < WORDS, other=0)[None, :]
        products = tl.sum(dot_groups(words, even, odd, GROUP_WORDS) * (scale * x_scale), 1)
    else:
        p_row = p_x + token * HIDDEN + o_word * 8
        products = tl.sum(_sum_units(_dot_floats(words, p_row, o_word < WORDS), GROUP_WORDS) * scale, 1)
    store_h(products, p_h, p_h_scale, pair, first, WIDTH, BLOCK, INT8)


@triton.jit
def load_down(
    p_weight,
    p_weight_scale,
    expert,
    routed,
    m_slot,
    first,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Load BLOCK rows of the experts of slots: words (slots, BLOCK, PADDED), and scale · router weight of groups.

    Slots are the first axis, over which Triton spreads warps before rows: a thread has many rows of a slot, and one h.
    """
    WORDS: tl.constexpr = WIDTH // 8
    GROUPS: tl.constexpr = WIDTH // GROUP
    row = (expert.to(tl.int64) * HIDDEN + first)[:, None, None] + tl.arange(0, BLOCK)[None, :, None]
    o_word = tl.arange(0, PADDED)[None, None, :]
    o_group = tl.arange(0, PADDED * 8 // GROUP)[None, None, :]
    m_rows = m_slot[:, None, None]
    words = tl.load(p_weight + row * WORDS + o_word, mask=m_rows & (o_word < WORDS), other=0)
    scale = tl.load(p_weight_scale + row * GROUPS + o_group, mask=m_rows & (o_group < GROUPS), other=0.0)
    return words, scale.to(tl.float32) * routed[:, None, None]


@triton.jit
def _load_routing(p_weights, p_ids, token, EXPERTS: tl.constexpr, SLOTS: tl.constexpr, START, COUNT: tl.constexpr):
    """Load (expert, router weight, pair, whether the expert is one) of COUNT slots of a token from START on."""
    slot = START + tl.arange(0, COUNT)
    pair = token * SLOTS + slot
    expert = tl.load(p_ids + pair, mask=slot < SLOTS, other=-1, cache_modifier=".cg")
    m_slot = (expert >= 0) & (expert < EXPERTS)
    routed = tl.load(p_weights + pair, mask=m_slot, other=0.0, cache_modifier=".cg")
    return expert, routed, pair, m_slot


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
def sum_slots_int8(
    tile,
    rest,
    p_h,
    p_h_scale,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    H_BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
    REST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Return the outputs (BLOCK,) of two tiles (words, factor, pair, mask of slots) for int8 h; REST 0: of one."""
    UNIT: tl.constexpr = H_BLOCK // 8
    words, factor, pair, m_slot = tile
    odd = _load_plane(p_h, pair, m_slot, 1, WIDTH, PADDED)
    scale = _load_h_scale(p_h_scale, pair, m_slot, WIDTH, H_BLOCK, PADDED)
    if REST > 0:
        rest_words, rest_factor, rest_pair, m_rest = rest
        rest_even = _load_plane(p_h, rest_pair, m_rest, 0, WIDTH, PADDED)
        rest_odd = _load_plane(p_h, rest_pair, m_rest, 1, WIDTH, PADDED)
        rest_scale = _load_h_scale(p_h_scale, rest_pair, m_rest, WIDTH, H_BLOCK, PADDED)
    issue_loads(PDL)
    even = _load_plane(p_h, pair, m_slot, 0, WIDTH, PADDED)
    result = _sum_slots(_sum_units(dot_words(words, even, odd), UNIT) * scale, factor, UNIT, GROUP)
    if REST > 0:
        units = _sum_units(dot_words(rest_words, rest_even, rest_odd), UNIT) * rest_scale
        result += _sum_slots(units, rest_factor, UNIT, GROUP)
    return result


@triton.jit
def _sum_slots_float(tile, p_h, WIDTH: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr):
    """Return the outputs (BLOCK,) of a tile (words, factor, pair, mask of slots) for float32 h."""
    words, factor, pair, m_slot = tile
    o_word = tl.arange(0, PADDED)[None, :]
    m_word = m_slot[:, None] & (o_word < WIDTH // 8)
    return _sum_slots(_dot_floats(words, p_h + pair[:, None] * WIDTH + o_word * 8, m_word), factor, 1, GROUP)


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
    expert, routed, pair, m_slot = _load_routing(p_weights, p_ids, token, EXPERTS, SLOTS, 0, MOST)
    words, factor = load_down(
        p_weight, p_weight_scale, expert, routed, m_slot, first, HIDDEN, WIDTH, GROUP, BLOCK, PADDED
    )
    tile = (words, factor, pair, m_slot)
    rest = tile
    if REST > 0:
        expert, routed, pair, m_slot = _load_routing(p_weights, p_ids, token, EXPERTS, SLOTS, MOST, REST)
        words, factor = load_down(
            p_weight, p_weight_scale, expert, routed, m_slot, first, HIDDEN, WIDTH, GROUP, BLOCK, PADDED
        )
        rest = (words, factor, pair, m_slot)
    wait_for_previous(PDL)
    # Together with h: a load behind the products would be waited for by itself.
    o_out = token * HIDDEN + first + tl.arange(0, BLOCK)
    if p_residual is not None:
        residual = tl.load(p_residual + o_out).to(tl.float32)
    if INT8:
        result = sum_slots_int8(tile, rest, p_h, p_h_scale, WIDTH, GROUP, H_BLOCK, PADDED, REST, PDL)
    else:
        result = _sum_slots_float(tile, p_h, WIDTH, GROUP, PADDED)
        if REST > 0:
            result += _sum_slots_float(rest, p_h, WIDTH, GROUP, PADDED)
    if p_residual is not None:
        result += residual
    tl.store(p_out + o_out, result.to(p_out.dtype.element_ty))
