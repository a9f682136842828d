"""Kernel pieces: filtering and drawing over a list of logits, by narrowing a range of integer keys sixteenfold a pass.

top-k, top-p and min-p keep what is at least one threshold. With f(t) the count, or the probability, of what is at least
t, the threshold is the largest t whose f reaches a target; f falls as t rises.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl

from cuda_kernels.sampling.noise import gumbel_of_words, ordered_key, packed_choice, philox_words, value_of_key

_WAYS = tl.constexpr(16)
_NOTHING = tl.constexpr(-0x7FFFFFFFFFFFFFFF)


@triton.jit
def probes_of(low, high):
    """Return (step, probes): low + step, low + 2 step, … which split [low, high] into _WAYS parts; int64."""
    step = tl.cdiv(high - low, _WAYS)
    return step, low + step * (tl.arange(0, _WAYS) + 1)


@triton.jit
def narrow(low, high, step, probes, reached):
    """Return the part of [low, high] that holds the largest key to reach the target, given which probes reach it."""
    low += step * tl.sum((reached & (probes <= high)).to(tl.int64), 0)
    return low, tl.minimum(high, low + step - 1)


@triton.jit
def sum_at_least(keys, weights, probes):
    """Return, for each probe, the sum of the weights (N,) whose key is at least the probe."""
    # Keys lie along the last axis, so that a thread first adds up its own.
    return tl.sum(tl.where(keys[None, :] >= probes.to(tl.int32)[:, None], weights[None, :], 0.0), 1)


@triton.jit
def _load(p_x, first, size, top, temperature, floor, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """Return logits and their weights: 1, or exp((x - top) / temperature), and 0 below floor and past the end."""
    o_x = first + tl.arange(0, BLOCK)
    x = tl.load(p_x + o_x, mask=o_x < size, other=float("-inf"))
    weights = tl.exp((x - top) / temperature) if WEIGHTED else tl.full((BLOCK,), 1.0, tl.float32)
    return x, tl.where((o_x < size) & (x >= floor), weights, 0.0)


@triton.jit
def _search(p_x, size, top, temperature, floor, target, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """Return the largest threshold from floor to top whose count (or probability, WEIGHTED) reaches the target."""
    low, high = ordered_key(floor).to(tl.int64), ordered_key(top).to(tl.int64)
    while low < high:
        step, probes = probes_of(low, high)
        sums = tl.zeros((_WAYS,), tl.float32)
        for first in range(0, size, BLOCK):
            x, weights = _load(p_x, first, size, top, temperature, floor, WEIGHTED, BLOCK)
            sums += sum_at_least(ordered_key(x), weights, probes)
        low, high = narrow(low, high, step, probes, sums >= target)
    return value_of_key(low.to(tl.int32))


@triton.jit
def mass_of(p_x, size, top, temperature, floor, BLOCK: tl.constexpr):
    """Return the sum of exp((x - top) / temperature) over the logits that are at least floor."""
    mass = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, size, BLOCK):
        _, weights = _load(p_x, first, size, top, temperature, floor, True, BLOCK)
        mass += weights
    return tl.sum(mass, 0)


@triton.jit
def draw(
    p_x,
    p_token,
    size,
    floor,
    top,
    mass,
    temperature,
    top_k,
    top_p,
    least,
    seed,
    position,
    BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
):
    """Filter the logits p_x (size,), all of which are at least floor, and return the packed choice of one.

    top_k and top_p are off at 0 and 1; mass is the sum of exp((x - top) / temperature) of the row where top_k is off.
    least: the threshold of min-p. LISTED: p_token holds their tokens, otherwise these are 0 … size - 1.
    """
    if top_k > 0:
        floor = _search(p_x, size, top, temperature, floor, top_k.to(tl.float32), False, BLOCK)
    if top_p < 1.0:
        if top_k > 0:
            mass = mass_of(p_x, size, top, temperature, floor, BLOCK)
        floor = _search(p_x, size, top, temperature, floor, top_p * mass, True, BLOCK)
    floor = tl.maximum(floor, least)
    best = tl.full((), _NOTHING, tl.int64)
    for first in range(0, size, BLOCK):
        o_x = first + tl.arange(0, BLOCK)
        x = tl.load(p_x + o_x, mask=o_x < size, other=float("-inf"))
        token = tl.load(p_token + o_x, mask=o_x < size, other=0) if LISTED else o_x
        w0, w1, w2, w3 = philox_words(token // 4, position, seed)
        word = tl.where(token % 2 == 0, tl.where(token % 4 == 0, w0, w2), tl.where(token % 4 == 1, w1, w3))
        x = tl.where(x >= floor, x + temperature * gumbel_of_words(word), float("-inf"))
        best = tl.maximum(best, tl.max(tl.where(o_x < size, packed_choice(x, token), _NOTHING), 0))
    return best
