"""The choice of the largest of a row of logits, by integer keys that order as they do.

Equal logits are chosen by their index, the lower first. They are rare, so the fast way looks for different values, and
whether it was enough is one more sum.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment"

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**31))


@triton.jit
def ordered(x):
    """Return an int32 that orders as float32 x does, NaN highest and -0.0 with 0.0; its own inverse but for those."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x != x, 0x7FC00000, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def value_of(key):
    """Return the float32 that `ordered` made a key of."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def largest_values(keys, COUNT: tl.constexpr):
    """Return the COUNT largest different keys of each row (B, E), a tuple of (B,), by one reduction each."""
    largest = ()
    for _slot in tl.static_range(COUNT):
        key = tl.max(keys, 1)
        keys = tl.where(keys < key[:, None], keys, LOWEST)
        largest = largest + (key,)  # noqa: RUF005  (Triton knows no unpacking)
    return largest


@triton.jit
def experts_of(keys, values, COUNT: tl.constexpr):
    """Return the columns of keys (B, E) that hold each of COUNT values, each of which occurs once."""
    o_expert = tl.arange(0, keys.shape[1])[None, :]
    experts = ()
    for slot in tl.static_range(COUNT):
        expert = tl.sum(tl.where(keys == values[slot][:, None], o_expert, 0), 1)
        experts = experts + (expert,)  # noqa: RUF005
    return experts


@triton.jit
def largest_of_equals(keys, COUNT: tl.constexpr):
    """Return the COUNT largest keys of each row (B, E) and their columns; of equal ones the lower column first."""
    o_expert = tl.arange(0, keys.shape[1])[None, :]
    values, experts = (), ()
    for _slot in tl.static_range(COUNT):
        key = tl.max(keys, 1)
        expert = tl.min(tl.where(keys == key[:, None], o_expert, 0x7FFFFFFF), 1)
        keys = tl.where(o_expert == expert[:, None], LOWEST, keys)
        values = values + (key,)  # noqa: RUF005
        experts = experts + (expert,)  # noqa: RUF005
    return values, experts


@triton.jit
def are_unique(keys, least, COUNT: tl.constexpr):
    """Return whether COUNT keys of each row (B, E) are at least `least` (B,), the last of `largest_values`."""
    count = tl.sum((keys >= least[:, None]).to(tl.int32), 1)
    return tl.min(((count == COUNT) & (least > LOWEST)).to(tl.int32), 0) == 1
