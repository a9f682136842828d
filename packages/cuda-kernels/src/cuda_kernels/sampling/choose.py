"""Second kernel of sampling: the last choice, among a few candidates where a row is filtered, and its count.

The candidates are groups of neighbouring logits: if at least n groups have a peak of t or more, at least n logits are t
or more, and all of these lie in those groups. So a t that a few hundred groups reach bounds the largest few hundred
logits, without a sort and after one pass over the row. Where the candidates cannot hold the answer (equal logits by the
thousand, a nucleus of thousands of tokens) the same search runs over the whole row.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import wait_for_previous
from cuda_kernels.sampling.noise import chosen_token, ordered_key, value_of_key
from cuda_kernels.sampling.row import is_filtered, load_slot, load_temperature, load_top_k
from cuda_kernels.sampling.search import draw, mass_of, narrow, probes_of, sum_at_least

_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _bound(peaks, top, wanted, MOST: tl.constexpr):
    """Return (t, count of peaks at least t) with a count of `wanted` … MOST, or of more where no t has such a count."""
    keys, ones = ordered_key(peaks), tl.full(peaks.shape, 1.0, tl.float32)
    low, high = ordered_key(tl.min(peaks, 0)).to(tl.int64), ordered_key(top).to(tl.int64)
    count = tl.sum(ones, 0)
    while (low < high) & (count > MOST):
        step, probes = probes_of(low, high)
        counts = sum_at_least(keys, ones, probes)
        reached = counts >= wanted
        count = tl.min(tl.where(reached & (probes <= high), counts, count), 0)
        low, high = narrow(low, high, step, probes, reached)
    return value_of_key(low.to(tl.int32)), count


@triton.jit
def _list_candidates(p_x, p_group, p_candidate, p_token, peaks, bound, GROUP: tl.constexpr, MOST: tl.constexpr):
    """Write the logits that are at least `bound`, and their tokens, in order; return how many. At most MOST groups."""
    chosen = peaks >= bound
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(p_group + place, tl.arange(0, peaks.shape[0]), mask=chosen)
    tl.debug_barrier()
    o_group = tl.arange(0, MOST)
    m_group = o_group < tl.sum(chosen.to(tl.int32), 0)
    group = tl.load(p_group + o_group, mask=m_group, other=0)
    token = tl.reshape(group[:, None] * GROUP + tl.arange(0, GROUP)[None, :], (MOST * GROUP,))
    m_token = tl.reshape(tl.broadcast_to(m_group[:, None], (MOST, GROUP)), (MOST * GROUP,))
    x = tl.load(p_x + token, mask=m_token, other=float("-inf"))
    kept = m_token & (x >= bound)
    place = tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(p_candidate + place, x, mask=kept)
    tl.store(p_token + place, token, mask=kept)
    tl.debug_barrier()
    return tl.sum(kept.to(tl.int32), 0)


@triton.jit
def sample_choose_kernel(
    p_temperature,
    p_top_k,
    p_top_p,
    p_min_p,
    p_seeds,
    p_positions,
    p_slots,
    p_history,
    p_best,
    p_x,
    p_peaks,
    p_top,
    p_mass,
    p_group,
    p_candidate,
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
    LIST_BLOCK: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Choose the token of a row from what the scan left; program (row). BLOCKS: blocks, up to a power of two."""
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    slot, valid = load_slot(p_slots, row, slots)
    if valid == 0:
        tl.store(p_out + row, 0)
        return
    temperature = load_temperature(p_temperature, p_top_k, row)
    top_k = load_top_k(p_top_k, row, vocab_size)
    top_p, min_p = tl.load(p_top_p + row), tl.load(p_min_p + row)
    o_block = tl.arange(0, BLOCKS)
    m_block = o_block < blocks
    if is_filtered(temperature, top_k, top_p, min_p):
        seed, position = tl.load(p_seeds + row), tl.load(p_positions + row)
        tops = tl.load(p_top + row * blocks + o_block, mask=m_block, other=float("-inf"))
        masses = tl.load(p_mass + row * blocks + o_block, mask=m_block, other=0.0)
        top = tl.maximum(tl.max(tops, 0), -_LARGEST)
        mass = tl.sum(masses * tl.exp((tops - top) / temperature), 0)
        least = top + temperature * tl.log(tl.minimum(tl.maximum(min_p, 0.0), 1.0))

        PEAKS: tl.constexpr = BLOCK // GROUP
        o_peak = tl.arange(0, BLOCKS * PEAKS)
        peaks = tl.load(p_peaks + row * blocks * PEAKS + o_peak, mask=o_peak < blocks * PEAKS, other=float("-inf"))
        bound, count = _bound(peaks, top, tl.where(top_k > 0, top_k, MOST // 2), MOST)
        p_x += row * blocks * BLOCK
        p_candidate += row * (MOST * GROUP)
        p_token += row * (MOST * GROUP)
        listed = 0
        if count <= MOST:
            p_group += row * (BLOCKS * PEAKS)
            listed = _list_candidates(p_x, p_group, p_candidate, p_token, peaks, bound, GROUP, MOST)
            if (top_k == 0) & (top_p < 1.0):
                listed_mass = mass_of(p_candidate, listed, top, temperature, bound, LIST_BLOCK)
                listed = tl.where(listed_mass >= top_p * mass, listed, 0)
            if (top_k == 0) & (top_p >= 1.0):
                listed = tl.where(least >= bound, listed, 0)
        if listed > 0:
            best = draw(
                p_candidate, p_token, listed, bound, top, mass, temperature, top_k, top_p, least, seed, position,
                LIST_BLOCK, True,
            )  # fmt: skip
        else:
            lowest = tl.full((), float("-inf"), tl.float32)
            best = draw(
                p_x, p_token, vocab_size, lowest, top, mass, temperature, top_k, top_p, least, seed, position,
                ROW_BLOCK, False,
            )  # fmt: skip
    else:
        best = tl.max(tl.load(p_best + row * blocks + o_block, mask=m_block, other=-0x7FFFFFFFFFFFFFFF), 0)
    token = chosen_token(best)
    tl.store(p_out + row, token)
    tl.atomic_add(p_history + slot * vocabulary + token, 2)
