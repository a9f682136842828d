"""Kernel pieces: Gumbel noise from Philox4x32-10, and float32 numbers as integers of the same order."""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl

_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)  # the float32 below 1
_LOW_BITS = tl.constexpr(0x7FFFFFFF)
NOTHING = tl.constexpr(-0x7FFFFFFFFFFFFFFF)  # less than any packed choice


@triton.jit
def gumbel_of_words(words):
    """Turn 32-bit words (uint32) into Gumbel noise, as reference.gumbel_of_bits does."""
    u = tl.minimum(words.to(tl.float32) * 2.0**-32 + 2.0**-33, _BELOW_ONE)
    rest = 1.0 - u
    exponential = tl.where(rest == 1.0, u, -tl.log(rest) * (u / (1.0 - rest)))
    return -tl.log(exponential)


@triton.jit
def philox_words(counters, position, seed):
    """Return the four 32-bit words (uint32) of each counter, int32 of any shape, at a position, int64."""
    zero = tl.zeros_like(counters)
    low, high = position.to(tl.int32) + zero, (position >> 32).to(tl.int32) + zero
    return tl.philox(seed, counters, zero, low, high)


@triton.jit
def gumbel(counters, position, seed):
    """Return the noise of tokens 4c … 4c + 3 of each counter c, as (…, 2, 2), to be reshaped."""
    w0, w1, w2, w3 = philox_words(counters, position, seed)
    # join adds a last axis, so the halves are crossed to come out in order.
    return gumbel_of_words(tl.join(tl.join(w0, w2), tl.join(w1, w3)))


@triton.jit
def ordered_key(x):
    """Map float32 to int32 so that numbers compare as integers; x holds no NaN and no -0.0."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & _LOW_BITS)


@triton.jit
def value_of_key(key):
    """Invert `ordered_key`."""
    return (key ^ ((key >> 31) & _LOW_BITS)).to(tl.float32, bitcast=True)


@triton.jit
def packed_choice(x, token):
    """Pack a score and its token so that the largest int64 is the best score, the lower token on ties."""
    return (ordered_key(tl.where(x == 0.0, 0.0, x)).to(tl.int64) << 32) | (token ^ _LOW_BITS).to(tl.int64)


@triton.jit
def chosen_token(packed):
    """Return the token of a packed choice."""
    return (packed & _LOW_BITS) ^ _LOW_BITS
