"""Stable sort of short rows: key and position packed in one 64-bit number, sorted in registers by a bitonic network."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import wait_for_previous


@triton.jit
def ordered_bits(x):
    """Return an int32 that orders as x does: numbers by value, -0.0 with 0.0, NaN highest."""
    if x.dtype.is_floating():
        x32 = x.to(tl.float32)
        bits = tl.where(x32 == 0.0, 0.0, x32).to(tl.int32, bitcast=True)
        ordered = tl.where(x32 != x32, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    else:
        ordered = x
    return ordered


@triton.jit(do_not_specialize=["rows", "inner"])
def sort_rows(
    p_keys,
    p_values,
    p_indices,
    rows,
    inner,
    LENGTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    DESCENDING: tl.constexpr,
    PDL: tl.constexpr,
):
    """Sort ROWS rows of LENGTH keys, `inner` elements apart from each other in memory, as the rows of a row lie."""
    wait_for_previous(PDL)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    place = tl.arange(0, PADDED)
    base = (row // inner) * inner * LENGTH + row % inner
    m_row = (row < rows)[:, None]
    o_key = base[:, None] + place[None, :] * inner
    keys = tl.load(p_keys + o_key, mask=m_row & (place < LENGTH)[None, :], other=0)
    bits = ordered_bits(keys)
    if DESCENDING:
        bits = ~bits
    # The position breaks ties and makes all numbers distinct; padding goes behind everything.
    packed = (bits.to(tl.int64) << 32) | place[None, :]
    packed = tl.where((place < LENGTH)[None, :], packed, 0x7FFFFFFFFFFFFFFF)
    index = tl.sort(packed, dim=1) & 0xFFFFFFFF
    m_out = m_row & (place < LENGTH)[None, :]
    # Values are read again and not unpacked: a NaN keeps its bits, and a zero its sign.
    values = tl.load(p_keys + base[:, None] + index * inner, mask=m_out, other=0)
    tl.store(p_values + o_key, values, mask=m_out)
    tl.store(p_indices + o_key, index, mask=m_out)
