"""Kernel pieces: the sampling parameters of one row, and passes over its logits by one program."""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl

from cuda_kernels.sampling.noise import NOTHING, ordered_key, packed_choice, value_of_key


@triton.jit
def load_temperature(p_temperature, p_top_k, row):
    """Return the temperature of a row, 0 where it samples greedily: it is not positive, or only one token is kept."""
    temperature = tl.load(p_temperature + row)
    return tl.where((temperature > 0.0) & (tl.load(p_top_k + row) != 1), temperature, 0.0)


@triton.jit
def load_top_k(p_top_k, row, vocab_size):
    """Return how many tokens top-k keeps, int32; 0 where it is off."""
    top_k = tl.load(p_top_k + row)
    return tl.where(top_k < vocab_size, tl.maximum(top_k, 0), 0).to(tl.int32)


@triton.jit
def is_filtered(temperature, top_k, top_p, min_p):
    """Return whether a row drops any token before it draws."""
    return (temperature > 0.0) & ((top_k > 0) | (top_p < 1.0) | (min_p > 0.0))


@triton.jit
def load_slot(p_slots, row, slots):
    """Return (slot, whether the row is a real one)."""
    slot = tl.load(p_slots + row)
    valid = (slot >= 0) & (slot < slots)
    return tl.where(valid, slot, 0), valid


@triton.jit
def mass_of(p_x, size, above, least, top, temperature, BLOCK: tl.constexpr):
    """Return the sum of exp((x - top) / temperature) over the logits that are over `above` and at least `least`."""
    mass = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, size, BLOCK):
        o_x = first + tl.arange(0, BLOCK)
        x = tl.load(p_x + o_x, mask=o_x < size, other=float("-inf"))
        mass += tl.where((x > above) & (x >= least), tl.exp((x - top) / temperature), 0.0)
    return tl.sum(mass, 0)


@triton.jit
def best_above(p_x, p_score, size, above, BLOCK: tl.constexpr):
    """Return the packed choice of the best score among the logits over `above`."""
    best = tl.full((), NOTHING, tl.int64)
    for first in range(0, size, BLOCK):
        o_x = first + tl.arange(0, BLOCK)
        x = tl.load(p_x + o_x, mask=o_x < size, other=float("-inf"))
        score = tl.load(p_score + o_x, mask=o_x < size, other=float("-inf"))
        best = tl.maximum(best, tl.max(tl.where(x > above, packed_choice(score, o_x), NOTHING), 0))
    return best


@triton.jit
def kth_largest(p_x, size, k, lowest, top, BLOCK: tl.constexpr):
    """Return the k-th largest logit, which is at least `lowest`, by bisecting integer keys."""
    low, high = ordered_key(lowest).to(tl.int64), ordered_key(top).to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        threshold = value_of_key(middle.to(tl.int32))
        count = tl.zeros((BLOCK,), tl.int32)
        for first in range(0, size, BLOCK):
            o_x = first + tl.arange(0, BLOCK)
            x = tl.load(p_x + o_x, mask=o_x < size, other=float("-inf"))
            count += ((o_x < size) & (x >= threshold)).to(tl.int32)
        enough = tl.sum(count, 0) >= k
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
    return value_of_key(low.to(tl.int32))
