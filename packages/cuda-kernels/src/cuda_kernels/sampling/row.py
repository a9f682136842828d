"""Kernel pieces: the sampling parameters of one row."""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl


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
