"""First kernel of sampling: penalties, noise and partial maxima over blocks of the vocabulary."""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl

from cuda_kernels.primitives import wait_for_previous
from cuda_kernels.sampling.noise import gumbel, packed_choice
from cuda_kernels.sampling.row import is_filtered, load_slot, load_temperature, load_top_k

_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _penalize(x, history, presence, frequency, repetition):
    """Apply the penalties as reference.penalize does."""
    x = tl.where(history != 0, tl.where(x > 0.0, x / repetition, x * repetition), x)
    count = history >> 1
    x = x - frequency * count.to(tl.float32) - tl.where(count > 0, presence, 0.0)
    return tl.minimum(x, _LARGEST)


@triton.jit
def sample_scan_kernel(
    p_logits,
    p_temperature,
    p_top_k,
    p_top_p,
    p_min_p,
    p_presence,
    p_frequency,
    p_repetition,
    p_seeds,
    p_positions,
    p_slots,
    p_history,
    p_best,
    p_x,
    p_score,
    p_peaks,
    p_top,
    p_mass,
    slots,
    vocabulary,
    vocab_size,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """Scan BLOCK logits of a row; program (block, row), n blocks a row.

    Leaves the packed choice of the block in p_best (B, n): of the penalized logits plus temperature · noise. A filtered
    row leaves both in p_x and p_score (B, n·BLOCK), the largest logit of every GROUP in p_peaks, and the largest of the
    block and the sum of exp((x - largest) / temperature) in p_top and p_mass (B, n).
    """
    wait_for_previous(PDL)
    block, row, blocks = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    slot, valid = load_slot(p_slots, row, slots)
    if valid == 0:
        return
    o_v = block * BLOCK + tl.arange(0, BLOCK)
    m_v = o_v < vocab_size
    x = tl.load(p_logits + row * vocabulary + o_v, mask=m_v, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, tl.minimum(x, _LARGEST), float("-inf"))
    presence, frequency, repetition = tl.load(p_presence + row), tl.load(p_frequency + row), tl.load(p_repetition + row)
    if (presence != 0.0) | (frequency != 0.0) | (repetition != 1.0):
        history = tl.load(p_history + slot * vocabulary + o_v, mask=m_v, other=0)
        x = _penalize(x, history, presence, frequency, repetition)
    x = tl.where(x == 0.0, 0.0, x)

    temperature = load_temperature(p_temperature, p_top_k, row)
    score = x
    if temperature > 0.0:
        counters = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
        noise = gumbel(counters, tl.load(p_positions + row), tl.load(p_seeds + row))
        score = x + temperature * tl.reshape(noise, (BLOCK,))
    o_block = row * blocks + block
    tl.store(p_best + o_block, tl.max(packed_choice(score, o_v), 0))
    top_k = load_top_k(p_top_k, row, vocab_size)
    if is_filtered(temperature, top_k, tl.load(p_top_p + row), tl.load(p_min_p + row)):
        o_x = o_block * BLOCK + tl.arange(0, BLOCK)
        tl.store(p_x + o_x, x)
        tl.store(p_score + o_x, score)
        o_group = o_block * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
        tl.store(p_peaks + o_group, tl.max(tl.reshape(x, (BLOCK // GROUP, GROUP)), 1))
        top = tl.max(x, 0)
        tl.store(p_top + o_block, top)
        tl.store(p_mass + o_block, tl.sum(tl.exp((x - tl.maximum(top, -_LARGEST)) / temperature), 0))
