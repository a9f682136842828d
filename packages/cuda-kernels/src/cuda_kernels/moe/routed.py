"""Routing and expert products of a few rows in two kernels, from the logits of a router that has not seen the norm.

The norm of a row only scales its logits: it changes no choice, only the weights of the chosen. So each program chooses
by itself: `routed_gate_up` the expert of its slot, to norm and quantize the row while the weights are on their way, and
`routed_down` all of them, while `routed_gate_up` still runs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from cuda_kernels.moe.choice import (
    LOWEST,
    are_unique,
    experts_of,
    largest_of_equals,
    largest_values,
    ordered,
    value_of,
)
from cuda_kernels.moe.decode import load_down, load_gate_up, store_h, sum_slots_int8
from cuda_kernels.primitives import dot_groups, quantize_words, wait_for_previous


@triton.jit
def _load_keys(p_logits, EXPERTS: tl.constexpr, PADDED_EXPERTS: tl.constexpr):
    """Return the keys (1, PADDED_EXPERTS) of a token's routed experts, read past an L1 that may be out of date."""
    o_expert = tl.arange(0, PADDED_EXPERTS)
    logits = tl.load(p_logits + o_expert, mask=o_expert < EXPERTS, other=0.0, cache_modifier=".cg")
    return tl.where(o_expert < EXPERTS, ordered(logits), LOWEST)[None, :]


@triton.jit
def _expert_of_slot(keys, slot, EXPERTS: tl.constexpr, TOP_K: tl.constexpr):
    """Return the expert of one slot of a token, by keys (1, E); slots from TOP_K on are the shared experts'."""
    values = largest_values(keys, TOP_K)
    chosen = values[0]
    expert = tl.zeros((1,), tl.int32)
    if are_unique(keys, values[TOP_K - 1], TOP_K):
        for i in tl.static_range(1, TOP_K):
            chosen = tl.where(slot == i, values[i], chosen)
        expert = tl.sum(tl.where(keys == chosen[:, None], tl.arange(0, keys.shape[1])[None, :], 0), 1)
    else:
        _, experts = largest_of_equals(keys, TOP_K)
        for i in tl.static_range(TOP_K):
            expert = tl.where(slot == i, experts[i], expert)
    return tl.where(slot < TOP_K, tl.sum(expert, 0), EXPERTS + slot - TOP_K)


@triton.jit
def routed_gate_up(
    p_x,
    p_norm,
    p_logits,
    p_weight,
    p_weight_scale,
    p_h,
    p_h_scale,
    eps,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SHARED: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute BLOCK elements of h of one pair; PADDED is the power of two from HIDDEN / 8 words up."""
    SLOTS: tl.constexpr = TOP_K + SHARED
    ROWS: tl.constexpr = EXPERTS + (1 if SHARED > 0 else 0)
    pair = tl.program_id(0) // (WIDTH // BLOCK)
    first = tl.program_id(0) % (WIDTH // BLOCK) * BLOCK
    token = pair // SLOTS
    o_x = tl.arange(0, PADDED)[:, None] * 8 + tl.arange(0, 8)[None, :]
    gain = tl.load(p_norm + o_x, mask=o_x < HIDDEN, other=0.0).to(tl.float32) + 1.0
    wait_for_previous(PDL)
    keys = _load_keys(p_logits + token * ROWS, EXPERTS, PADDED_EXPERTS)
    x = tl.load(p_x + token.to(tl.int64) * HIDDEN + o_x, mask=o_x < HIDDEN, other=0.0).to(tl.float32)
    expert = _expert_of_slot(keys, pair % SLOTS, EXPERTS, TOP_K)
    words, scale = load_gate_up(p_weight, p_weight_scale, expert, first, HIDDEN, WIDTH, GROUP, BLOCK, PADDED)
    even, odd, x_scale, _ = quantize_words(x * gain, GROUP // 8)
    x_scale *= tl.rsqrt(tl.sum(tl.sum(x * x, 1), 0) / HIDDEN + eps)
    products = dot_groups(words, even[None, :], odd[None, :], GROUP // 8) * (scale * x_scale[None, :])
    store_h(tl.sum(products, 1), p_h, p_h_scale, pair, first, WIDTH, BLOCK, True)


@triton.jit
def _routing(values, experts, gate, inverse, START: tl.constexpr, COUNT: tl.constexpr, TOP_K, SHARED, EXPERTS):
    """Return (expert, weight, whether the slot is one) of COUNT slots from START on.

    values, experts: tuples of (1,), the chosen logits before the norm's factor `inverse`, the largest first.
    """
    slot = START + tl.arange(0, COUNT)
    expert = EXPERTS + slot - TOP_K
    weight = tl.zeros((COUNT,), tl.float32)
    total = tl.zeros((1,), tl.float32)
    for i in tl.static_range(TOP_K):
        part = tl.exp((values[i] - values[0]) * inverse)
        total += part
        expert = tl.where(slot == i, experts[i], expert)
        weight = tl.where(slot == i, part, weight)
    return expert, tl.where(slot < TOP_K, weight / total, tl.sigmoid(gate * inverse)), slot < TOP_K + SHARED


@triton.jit
def routed_down(
    p_x,
    p_logits,
    p_h,
    p_h_scale,
    p_weight,
    p_weight_scale,
    p_out,
    eps,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SHARED: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    H_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    MOST: tl.constexpr,
    REST: tl.constexpr,
    PADDED: tl.constexpr,
    PADDED_HIDDEN: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute BLOCK outputs of one token, x and what its experts give; tiles are as those of `down`."""
    SLOTS: tl.constexpr = TOP_K + SHARED
    ROWS: tl.constexpr = EXPERTS + (1 if SHARED > 0 else 0)
    token = (tl.program_id(0) // (HIDDEN // BLOCK)).to(tl.int64)
    first = tl.program_id(0) % (HIDDEN // BLOCK) * BLOCK
    # x and logits are two kernels old: `routed_gate_up` waited for them before this kernel could start.
    p_token = p_logits + token * ROWS
    keys = _load_keys(p_token, EXPERTS, PADDED_EXPERTS)
    gate = tl.load(p_token + ROWS - 1, cache_modifier=".cg")
    o_x = tl.arange(0, PADDED_HIDDEN)
    x = tl.load(p_x + token * HIDDEN + o_x, mask=o_x < HIDDEN, other=0.0, cache_modifier=".cg").to(tl.float32)
    largest = largest_values(keys, TOP_K)
    experts = experts_of(keys, largest, TOP_K)
    if are_unique(keys, largest[TOP_K - 1], TOP_K) == 0:
        largest, experts = largest_of_equals(keys, TOP_K)
    values = ()
    for i in tl.static_range(TOP_K):
        values = values + (value_of(largest[i]),)  # noqa: RUF005  (Triton knows no unpacking)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + eps)
    expert, weight, m_slot = _routing(values, experts, gate, inverse, 0, MOST, TOP_K, SHARED, EXPERTS)
    words, factor = load_down(
        p_weight, p_weight_scale, expert, weight, m_slot, first, HIDDEN, WIDTH, GROUP, BLOCK, PADDED
    )
    tile = (words, factor, token * SLOTS + tl.arange(0, MOST), m_slot)
    rest = tile
    if REST > 0:
        expert, weight, m_slot = _routing(values, experts, gate, inverse, MOST, REST, TOP_K, SHARED, EXPERTS)
        words, factor = load_down(
            p_weight, p_weight_scale, expert, weight, m_slot, first, HIDDEN, WIDTH, GROUP, BLOCK, PADDED
        )
        rest = (words, factor, token * SLOTS + MOST + tl.arange(0, REST), m_slot)
    o_out = token * HIDDEN + first + tl.arange(0, BLOCK)
    residual = tl.load(p_x + o_out, cache_modifier=".cg").to(tl.float32)
    wait_for_previous(PDL)
    result = residual + sum_slots_int8(tile, rest, p_h, p_h_scale, WIDTH, GROUP, H_BLOCK, PADDED, REST, PDL)
    tl.store(p_out + o_out, result.to(p_out.dtype.element_ty))
