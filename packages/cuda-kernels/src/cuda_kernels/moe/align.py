"""`moe_align_block_size` on the device: a stable counting sort of pairs by expert in three kernels, without the host.

Pairs are cut into chunks. `count` counts the experts of each chunk, `place_experts` turns the counts into the place of
each chunk's first pair of each expert, `scatter` ranks the pairs inside their chunk and writes them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import wait_for_previous


@triton.jit
def _load_experts(p_ids, o_pair, pairs, EXPERTS: tl.constexpr):
    """Return the experts of pairs, EXPERTS where the id is unknown or there is no pair."""
    expert = tl.load(p_ids + o_pair, mask=o_pair < pairs, other=-1, cache_modifier=".cg")
    return tl.where((expert >= 0) & (expert < EXPERTS), expert, EXPERTS)


@triton.jit(do_not_specialize=["pairs", "capacity", "blocks"])
def count(
    p_ids,
    p_counts,
    p_totals,
    p_sorted,
    p_expert,
    pairs,
    capacity,
    blocks,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Count a chunk's experts, add them to the totals, and fill this program's share of the outputs with padding."""
    chunk = tl.program_id(0)
    wait_for_previous(PDL)
    o_pair = chunk * CHUNK + tl.arange(0, CHUNK)
    # PADDED > EXPERTS, so unknown ids have a bin of their own.
    counts = tl.histogram(_load_experts(p_ids, o_pair, pairs, EXPERTS), PADDED)
    o_expert = tl.arange(0, PADDED)
    tl.store(p_counts + chunk.to(tl.int64) * EXPERTS + o_expert, counts, mask=o_expert < EXPERTS)
    tl.atomic_add(p_totals + o_expert, counts, mask=(o_expert < EXPERTS) & (counts > 0), sem="relaxed")
    for first in range(chunk * CHUNK, capacity, tl.num_programs(0) * CHUNK):
        o_out = first + tl.arange(0, CHUNK)
        tl.store(p_sorted + o_out, pairs, mask=o_out < capacity)
        tl.store(p_expert + o_out, -1, mask=o_out < blocks)


@triton.jit(do_not_specialize=["chunks"])
def place_experts(
    p_counts,
    p_totals,
    p_expert,
    p_padded,
    chunks,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    EXPERT_BLOCK: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Replace the counts of EXPERT_BLOCK experts by places, and name the experts of their blocks."""
    wait_for_previous(PDL)
    o_all = tl.arange(0, PADDED)
    o_expert = tl.program_id(0) * EXPERT_BLOCK + tl.arange(0, EXPERT_BLOCK)
    o_chunk = tl.arange(0, CHUNK_BLOCK)[:, None]
    p_tile = p_counts + o_chunk.to(tl.int64) * EXPERTS + o_expert[None, :]
    m_expert = (o_expert < EXPERTS)[None, :]
    # Each tile is loaded a round ahead, the first one beside the totals.
    counts = tl.load(p_tile, mask=(o_chunk < chunks) & m_expert, other=0)
    totals = tl.load(p_totals + o_all, mask=o_all < EXPERTS, other=0)
    blocks = (totals + BLOCK - 1) // BLOCK
    own = tl.sum(tl.where(o_all[None, :] == o_expert[:, None], blocks[None, :], 0), 1)
    before = tl.sum(tl.where(o_all[None, :] < o_expert[:, None], blocks[None, :], 0), 1)
    place = before * BLOCK
    for first in range(0, chunks, CHUNK_BLOCK):
        p_next = p_tile + CHUNK_BLOCK * EXPERTS
        following = tl.load(p_next, mask=(o_chunk + first + CHUNK_BLOCK < chunks) & m_expert, other=0)
        m_tile = (o_chunk + first < chunks) & m_expert
        tl.store(p_tile, place[None, :] + tl.cumsum(counts, 0) - counts, mask=m_tile)
        place += tl.sum(counts, 0)
        counts = following
        p_tile = p_next
    if tl.program_id(0) == 0:
        tl.store(p_padded, tl.sum(blocks, 0) * BLOCK)
    for first in range(0, tl.max(own, 0), CHUNK_BLOCK):
        o_block = first + tl.arange(0, CHUNK_BLOCK)[None, :]
        named = tl.broadcast_to(o_expert[:, None], (EXPERT_BLOCK, CHUNK_BLOCK))
        tl.store(p_expert + before[:, None] + o_block, named, mask=o_block < own[:, None])


@triton.jit(do_not_specialize=["pairs"])
def scatter(
    p_ids,
    p_places,
    p_totals,
    p_sorted,
    p_scale,
    p_sorted_scale,
    pairs,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the pairs of a chunk to their places, and the scales of their token's row as (blocks, GROUPS, BLOCK).

    The first program leaves the totals zero for the next call.
    """
    chunk = tl.program_id(0)
    o_pair = chunk * CHUNK + tl.arange(0, CHUNK)
    o_other = chunk * CHUNK + tl.arange(0, CHUNK)
    # The ids are two kernels old.
    expert = _load_experts(p_ids, o_pair, pairs, EXPERTS)
    other = _load_experts(p_ids, o_other, pairs, EXPERTS)
    earlier = (other[None, :] == expert[:, None]) & (o_other[None, :] < o_pair[:, None])
    rank = tl.sum(earlier.to(tl.int32), 1)
    wait_for_previous(PDL)
    if chunk == 0:
        o_expert = tl.arange(0, PADDED)
        tl.store(p_totals + o_expert, 0, mask=o_expert < EXPERTS)
    m_pair = expert < EXPERTS
    place = rank + tl.load(p_places + chunk.to(tl.int64) * EXPERTS + expert, mask=m_pair, other=0)
    tl.store(p_sorted + place, o_pair, mask=m_pair)
    if p_scale is not None:
        p_row = p_scale + (o_pair // SLOTS).to(tl.int64) * GROUPS
        p_column = p_sorted_scale + (place // BLOCK).to(tl.int64) * (GROUPS * BLOCK) + place % BLOCK
        for group in tl.static_range(GROUPS):
            tl.store(p_column + group * BLOCK, tl.load(p_row + group, mask=m_pair), mask=m_pair)
