"""Sampling in plain torch.

Every step works on the penalized logits themselves: with noise g, argmax(x / t + g) = argmax(x + t · g), which divides
by nothing and is the exact argmax at temperature t = 0; the filters reduce to one threshold on x.
"""

import torch

from cuda_kernels.checks import check
from cuda_kernels.sampling.layout import SamplingRows

# Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF

LARGEST = torch.finfo(torch.float32).max
# The largest uniform number in use; 1 - 2⁻²⁴ is the float32 below 1.
BELOW_ONE = 1.0 - 2.0**-24
# How many of the largest logits top-p looks at before it sorts them all.
NUCLEUS_GUESS = 1024


def sample_tokens(
    logits: torch.Tensor,
    rows: SamplingRows,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    history: torch.Tensor,
    vocab_size: int,
) -> torch.Tensor:
    """Choose a token a row and count it in the row's slot of `history`; a row of slot -1 gives 0 and counts nothing."""
    tokens, count = torch.zeros_like(positions), history.shape[0]
    for row, slot in enumerate(slots.tolist()):
        if slot == -1:
            continue
        check(0 <= slot < count, "sample_tokens", "slots", f"-1 or 0 … {count - 1}", slot)
        penalties = (rows.presence_penalty, rows.frequency_penalty, rows.repetition_penalty)
        x = penalize(clean(logits[row, :vocab_size]), history[slot, :vocab_size], *(float(p[row]) for p in penalties))
        t, k = float(rows.temperature[row]), int(rows.top_k[row])
        if t > 0 and k != 1:
            x = x.masked_fill(x < threshold(x, t, k, float(rows.top_p[row]), float(rows.min_p[row])), float("-inf"))
            x = x + t * gumbel(vocab_size, int(seeds[row]), int(positions[row]), device=x.device)
        token = int(x.argmax())
        tokens[row] = token
        history[slot, token] += 2
    return tokens


def mark_prompt(tokens: torch.Tensor, start: torch.Tensor, slot: torch.Tensor, history: torch.Tensor) -> None:
    """Set bit 0 of each prompt token in the slot's row of `history`, which is cleared first where start = 0."""
    index, (count, vocabulary) = int(slot), history.shape
    if index == -1:
        return
    check(0 <= index < count, "mark_prompt", "slot", f"-1 or 0 … {count - 1}", index)
    unknown = tokens[(tokens < 0) | (tokens >= vocabulary)].tolist()
    check(not unknown, "mark_prompt", "tokens", f"0 … {vocabulary - 1}", unknown)
    row = history[index]
    if int(start) == 0:
        row.zero_()
    row[tokens] |= 1


def clean(logits: torch.Tensor) -> torch.Tensor:
    """Return float32 logits where NaN has become -inf and +inf the largest finite number."""
    return logits.to(torch.float32).nan_to_num(nan=float("-inf"), posinf=LARGEST, neginf=float("-inf"))


def penalize(
    x: torch.Tensor, history: torch.Tensor, presence: float, frequency: float, repetition: float
) -> torch.Tensor:
    """Apply the penalties to logits x (V,).

    Repetition divides a positive logit and multiplies another one, for tokens of the prompt and of the output;
    frequency · count and presence are then subtracted for tokens of the output.
    """
    if repetition != 1.0:
        x = torch.where(history != 0, torch.where(x > 0, x / repetition, x * repetition), x)
    if frequency != 0.0 or presence != 0.0:
        count = history >> 1
        x = x - frequency * count - presence * (count > 0)
    return x.clamp_max(LARGEST)


def threshold(x: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> float:
    """Return the smallest logit that top-k, top-p and min-p keep; equal logits are kept or dropped together.

    top-k keeps the k largest; top-p, of these, the fewest whose probability reaches top_p; min-p those with at least
    min_p times the probability of the most probable one.
    """
    lowest, largest = float("-inf"), float(x.max())
    if 0 < top_k < x.numel():
        lowest = float(torch.topk(x, top_k).values[-1])
    if top_p < 1.0:
        lowest = _nucleus(x[x >= lowest], temperature, top_p)
    if min_p > 0.0:
        lowest = max(lowest, largest + temperature * float(torch.tensor(min(min_p, 1.0)).log()))
    return lowest


def gumbel(count: int, seed: int, position: int, *, device: torch.device | None = None) -> torch.Tensor:
    """Return standard Gumbel noise of tokens 0 … count - 1, float32; it depends on (seed, position, token) alone."""
    counters = torch.arange((count + 3) // 4, dtype=torch.int64, device=device)
    words = philox(counters, torch.full_like(counters, position), seed)
    return gumbel_of_bits(torch.stack(words, dim=1).flatten()[:count])


def gumbel_of_bits(words: torch.Tensor) -> torch.Tensor:
    """Turn 32-bit words into Gumbel noise -log(-log(1 - u)), u = (word + 1/2) · 2⁻³² kept below 1, so 0 < u < 1."""
    u = (words.to(torch.float32) * 2.0**-32 + 2.0**-33).clamp_max(BELOW_ONE)
    return -exponential(u).log()


def exponential(u: torch.Tensor) -> torch.Tensor:
    """Return -log(1 - u) for 0 < u < 1, to full precision near 0 (Kahan's correction of the rounding of 1 - u)."""
    rest = 1.0 - u
    return torch.where(rest == 1.0, u, -rest.log() * (u / (1.0 - rest)))


def philox(low: torch.Tensor, high: torch.Tensor, seed: int) -> tuple[torch.Tensor, ...]:
    """Return the four 32-bit words (int64) of Philox4x32-10 for 128-bit counters and a 64-bit key.

    low, high: the two 64-bit halves of the counters, int64.
    """
    c0, c1, c2, c3 = low & WORD, (low >> 32) & WORD, high & WORD, (high >> 32) & WORD
    k0, k1 = seed & WORD, (seed >> 32) & WORD
    for _ in range(ROUNDS):
        # The wrapped 64-bit product keeps the right bits; only the shift's sign must be masked off.
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((second >> 32) & WORD) ^ c1 ^ k0, second & WORD
        c2, c3 = ((first >> 32) & WORD) ^ c3 ^ k1, first & WORD
        k0, k1 = (k0 + INCREMENTS[0]) & WORD, (k1 + INCREMENTS[1]) & WORD
    return c0, c1, c2, c3


def _nucleus(x: torch.Tensor, temperature: float, top_p: float) -> float:
    """Return the smallest of the largest logits x whose share of the probability reaches top_p."""
    largest = x.max()
    total = ((x - largest) / temperature).to(torch.float64).exp().sum()
    for count in (min(NUCLEUS_GUESS, x.numel()), x.numel()):
        ordered = torch.topk(x, count).values
        reached = ((ordered - largest) / temperature).to(torch.float64).exp().cumsum(0)
        enough = reached >= top_p * total
        if bool(enough[-1]):
            return float(ordered[int(enough.to(torch.uint8).argmax())])
    return float("-inf")
