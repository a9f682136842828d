"""Second kernel of sampling: the final choice of a row, and its count in the history.

A filtered row keeps the logits that are at least some threshold, and chooses the best score (logit plus noise) among
them. With top-k, the few logits that may be kept are listed first: if at least k groups of neighbours have a peak of t
or more, then at least k logits are t or more, and all of these lie in those groups; ranks within the list are counted
pair by pair. Without top-k (or where the list would be long) scores are taken from the best down, and the first whose
logit is kept is the choice. Whether it is kept takes one pass, for the probability of all larger logits, and top-p
seldom refuses the first. Neither way sorts.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import wait_for_previous
from cuda_kernels.sampling.noise import NOTHING, chosen_token, ordered_key, packed_choice, value_of_key
from cuda_kernels.sampling.row import (
    best_above,
    is_filtered,
    kth_largest,
    load_slot,
    load_temperature,
    load_top_k,
    mass_of,
)

_WAYS = tl.constexpr(16)
_PAIRS = tl.constexpr(64)  # listed logits that all others are compared with at once


@triton.jit
def _bound(peaks, top, k, MOST: tl.constexpr):
    """Return (t, count of peaks at least t): count is k … MOST, or more where no t has such a count.

    Splits the range of integer keys into _WAYS parts a step.
    """
    keys = ordered_key(peaks)
    low, high = ordered_key(tl.min(peaks, 0)).to(tl.int64), ordered_key(top).to(tl.int64)
    count = tl.sum(tl.full(peaks.shape, 1, tl.int32), 0)
    while (low < high) & (count > MOST):
        step = tl.cdiv(high - low, _WAYS)
        probes = low + step * (tl.arange(0, _WAYS) + 1)
        # Peaks lie along the last axis, so that a thread first adds up its own.
        counts = tl.sum((keys[None, :] >= probes.to(tl.int32)[:, None]).to(tl.int32), 1)
        reached = (counts >= k) & (probes <= high)
        count = tl.min(tl.where(reached, counts, count), 0)
        low += step * tl.sum(reached.to(tl.int64), 0)
        high = tl.minimum(high, low + step - 1)
    return value_of_key(low.to(tl.int32)), count


@triton.jit
def _list_candidates(
    p_x, p_group, p_value, p_token, peaks, bound, GROUP: tl.constexpr, MOST: tl.constexpr, LIST: tl.constexpr
):
    """Write the logits that are at least `bound` and their tokens, in order, LIST at most; return their number."""
    chosen = peaks >= bound
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(p_group + place, tl.arange(0, peaks.shape[0]), mask=chosen)
    tl.debug_barrier()
    o_group = tl.arange(0, MOST)
    m_group = o_group < tl.sum(chosen.to(tl.int32), 0)
    group = tl.load(p_group + o_group, mask=m_group, other=0)
    token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(p_x + token, mask=m_group[:, None], other=float("-inf"))
    kept = (m_group[:, None] & (x >= bound)).to(tl.int32)
    # A place: those of the groups before, then those before it in the group itself.
    row_counts = tl.sum(kept, 1)
    place = (tl.cumsum(row_counts, 0) - row_counts)[:, None] + tl.cumsum(kept, 1) - 1
    m_kept = (kept > 0) & (place < LIST)
    tl.store(p_value + place, x, mask=m_kept)
    tl.store(p_token + place, token, mask=m_kept)
    tl.debug_barrier()
    return tl.sum(row_counts, 0)


@triton.jit
def _weight_above(x, p_value, weigh_from, top, temperature, listed, WEIGHTED: tl.constexpr, LIST: tl.constexpr):
    """Return, for each x (LIST,), how many listed values are larger, or their probability, from `weigh_from` on."""
    total = tl.zeros((LIST,), tl.float32)
    for part in tl.static_range(0, LIST, _PAIRS):
        o_l = part + tl.arange(0, _PAIRS)
        other = tl.load(p_value + o_l, mask=o_l < listed, other=float("-inf"))
        weight = tl.where(other >= weigh_from, 1.0, 0.0)
        if WEIGHTED:
            weight *= tl.exp((other - top) / temperature)
        # x lies along the last axis, so that a thread adds up what concerns its own.
        total += tl.sum(tl.where(other[:, None] > x[None, :], weight[:, None], 0.0), 0)
    return total


@triton.jit
def _choose_from_list(p_score, p_value, p_token, listed, top, temperature, top_k, top_p, least, LIST: tl.constexpr):
    """Return the packed choice among the listed tokens; there are top_k at least."""
    o_l = tl.arange(0, LIST)
    m_l = o_l < listed
    token = tl.load(p_token + o_l, mask=m_l, other=0)
    x = tl.load(p_value + o_l, mask=m_l, other=float("-inf"))
    score = tl.load(p_score + token, mask=m_l, other=float("-inf"))
    kept = m_l & (_weight_above(x, p_value, float("-inf"), top, temperature, listed, False, LIST) < top_k)
    if top_p < 1.0:
        lowest = tl.min(tl.where(kept, x, float("inf")), 0)
        mass = tl.sum(tl.where(kept, tl.exp((x - top) / temperature), 0.0), 0)
        before = _weight_above(x, p_value, lowest, top, temperature, listed, True, LIST)
        kept &= (before < top_p * mass) | (x >= top)
    kept &= x >= least
    return tl.max(tl.where(kept, packed_choice(score, token), NOTHING), 0)


@triton.jit
def _choose_from_row(
    p_x, p_score, size, best, mass, top, temperature, top_k, top_p, least, lowest, BLOCK: tl.constexpr
):
    """Return the packed choice of a row whose best score is `best`; its k-th largest logit is at least `lowest`."""
    if top_k > 0:
        least = tl.maximum(least, kth_largest(p_x, size, top_k, lowest, top, BLOCK))
        if top_p < 1.0:
            mass = mass_of(p_x, size, float("-inf"), least, top, temperature, BLOCK)
    searching = True
    while searching:
        x = tl.load(p_x + chosen_token(best))
        kept = x >= least
        if kept & (top_p < 1.0):
            kept = mass_of(p_x, size, x, least, top, temperature, BLOCK) < top_p * mass
        searching = (x < top) & (kept == 0)
        if searching:
            best = best_above(p_x, p_score, size, x, BLOCK)
    return best


@triton.jit
def sample_choose_kernel(
    p_temperature,
    p_top_k,
    p_top_p,
    p_min_p,
    p_slots,
    p_history,
    p_best,
    p_x,
    p_score,
    p_peaks,
    p_top,
    p_mass,
    p_group,
    p_value,
    p_token,
    p_out,
    slots,
    vocabulary,
    vocab_size,
    blocks,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCKS: tl.constexpr,
    MOST: tl.constexpr,
    LIST: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Choose the token of a row from what the scan left; program (row). BLOCKS: blocks, up to a power of two."""
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    PEAKS: tl.constexpr = BLOCK // GROUP
    o_block, o_peak = tl.arange(0, BLOCKS), tl.arange(0, BLOCKS * PEAKS)
    m_block = o_block < blocks
    # All at once, although not every row needs all: one after the other, they would cost a latency each.
    slot, valid = load_slot(p_slots, row, slots)
    bests = tl.load(p_best + row * blocks + o_block, mask=m_block, other=NOTHING)
    tops = tl.load(p_top + row * blocks + o_block, mask=m_block, other=float("-inf"))
    masses = tl.load(p_mass + row * blocks + o_block, mask=m_block, other=0.0)
    peaks = tl.load(p_peaks + row * blocks * PEAKS + o_peak, mask=o_peak < blocks * PEAKS, other=float("-inf"))
    temperature = load_temperature(p_temperature, p_top_k, row)
    top_k = load_top_k(p_top_k, row, vocab_size)
    top_p, min_p = tl.load(p_top_p + row), tl.load(p_min_p + row)
    if valid == 0:
        tl.store(p_out + row, 0)
        return
    best = tl.max(bests, 0)
    if is_filtered(temperature, top_k, top_p, min_p):
        top = tl.max(tops, 0)
        least = top + temperature * tl.log(tl.minimum(tl.maximum(min_p, 0.0), 1.0))
        p_x += row * blocks * BLOCK
        p_score += row * blocks * BLOCK
        p_value += row * LIST
        p_token += row * LIST
        lowest = tl.full((), float("-inf"), tl.float32)
        listed = LIST + 1
        if (top_k > 0) & (top_k <= MOST):
            lowest, count = _bound(peaks, top, top_k, MOST)
            if count <= MOST:
                p_group += row * (BLOCKS * PEAKS)
                listed = _list_candidates(p_x, p_group, p_value, p_token, peaks, lowest, GROUP, MOST, LIST)
        if listed <= LIST:
            best = _choose_from_list(p_score, p_value, p_token, listed, top, temperature, top_k, top_p, least, LIST)
        else:
            mass = tl.sum(masses * tl.exp((tops - top) / temperature), 0)
            best = _choose_from_row(
                p_x, p_score, vocab_size, best, mass, top, temperature, top_k, top_p, least, lowest, ROW_BLOCK
            )
    token = chosen_token(best)
    tl.store(p_out + row, token)
    tl.atomic_add(p_history + slot * vocabulary + token, 2)
