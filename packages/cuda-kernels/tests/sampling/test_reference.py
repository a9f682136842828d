"""The sampling operators on the CPU: generator, filters, penalties, seeds, odd logits, history, bad arguments."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_kernels.sampling import reference
from cuda_kernels.sampling.op import mark_prompt
from cuda_kernels.testing import check_operator

Make = Callable[..., Any]

HOT = {"temperature": 1.0}
INF = float("inf")
NAN = float("nan")


def sample(args: list[Any]) -> list[int]:
    return torch.ops.cuda_kernels.sample_tokens(*args).tolist()


# Known answers published with the generator: counter, key, words.
PHILOX = {
    "zeros": (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": (-1, -1, -1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        0x85A308D3243F6A88,
        0x0370734413198A2E,
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


@pytest.mark.parametrize(("low", "high", "key", "words"), PHILOX.values(), ids=PHILOX.keys())
def test_philox_known_answers(low: int, high: int, key: int, words: tuple[int, ...]) -> None:
    halves = [torch.tensor([(half + 2**63) % 2**64 - 2**63]) for half in (low, high)]
    assert tuple(int(word) for word in reference.philox(*halves, key)) == words


def test_noise_is_finite_at_the_ends_of_the_interval() -> None:
    noise = reference.gumbel_of_bits(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert torch.isfinite(noise).all()
    assert (noise[1:] <= noise[:-1]).all()
    # u = 2⁻³³ and u = 1 - 2⁻²⁴
    torch.testing.assert_close(noise[[0, -1]].double(), torch.tensor([22.8739, -2.8115]).double(), rtol=0, atol=1e-3)


def test_noise_has_the_moments_of_gumbel() -> None:
    noise = reference.gumbel(200_000, seed=5, position=3).double()
    assert abs(float(noise.mean()) - 0.57722) < 0.015
    assert abs(float(noise.std()) - 1.28255) < 0.015


def test_frequencies_follow_the_softmax(arguments: Make) -> None:
    logits, draws = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5]]), 800
    args = arguments(logits.expand(draws, 5).contiguous(), [HOT | {"positions": i} for i in range(draws)])
    counts = torch.bincount(torch.tensor(sample(args)), minlength=5).double()
    share = torch.softmax(logits[0].double(), 0)
    spread = (share * (1 - share) / draws).sqrt()
    assert ((counts / draws - share).abs() < 5 * spread).all()


GREEDY = {
    "largest": ([1.0, 3.0, 2.0], 1),
    "lower id on ties": ([1.0, 3.0, 3.0], 1),
    "minus zero equals zero": ([-1.0, -0.0, 0.0], 1),
    "nan counts as -inf": ([NAN, -5.0, NAN], 1),
    "infinity": ([1.0, INF, INF], 1),
    "no finite logit": ([NAN, -INF, NAN], 0),
}


@pytest.mark.parametrize("row", [{}, HOT | {"top_k": 1}], ids=["temperature 0", "top_k 1"])
@pytest.mark.parametrize(("logits", "token"), GREEDY.values(), ids=GREEDY.keys())
def test_greedy(arguments: Make, logits: list[float], token: int, row: dict[str, float]) -> None:
    assert sample(arguments(torch.tensor([logits]), [row])) == [token]


@pytest.mark.parametrize("top_k", [0, -1, 101, 10**9])
def test_top_k_off(arguments: Make, top_k: int) -> None:
    logits = torch.randn(20, 101)
    rows = [HOT | {"positions": i} for i in range(20)]
    assert sample(arguments(logits, rows)) == sample(arguments(logits, [row | {"top_k": top_k} for row in rows]))


FILTERS = {
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.1},
    "top_p 0": {"top_p": 0.0},
    "all": {"top_k": 20, "top_p": 0.8, "min_p": 0.05, "temperature": 0.7},
}


def kept_by_sorting(logits: torch.Tensor, row: dict[str, float]) -> torch.Tensor:
    """Return which logits a row keeps, by sorting in float64 as the definitions have it."""
    order = logits.double().argsort(descending=True, stable=True)
    if row["top_k"]:
        order = order[: row["top_k"]]
    share = torch.softmax(logits.double()[order] / row["temperature"], 0)
    before = share.cumsum(0) - share
    kept = (before < row["top_p"]) & (share >= row["min_p"] * share[0])
    kept[0] = True
    mask = torch.zeros(len(logits), dtype=torch.bool)
    mask[order[kept]] = True
    return mask


@pytest.mark.parametrize("row", FILTERS.values(), ids=FILTERS.keys())
def test_filters_keep_what_sorting_keeps(row: dict[str, float]) -> None:
    row = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | row
    for _ in range(20):
        x = torch.randn(301) * 2
        least = reference.threshold(x, row["temperature"], int(row["top_k"]), row["top_p"], row["min_p"])
        assert torch.equal(x >= least, kept_by_sorting(x, row))


def test_nucleus_wider_than_the_first_guess() -> None:
    x = torch.randn(5000) * 0.1
    row = {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0}
    least = reference.threshold(x, 1.0, 0, 0.9, 0.0)
    assert int((x >= least).sum()) > reference.NUCLEUS_GUESS
    assert torch.equal(x >= least, kept_by_sorting(x, row))


def test_penalties() -> None:
    x = torch.tensor([2.0, -2.0, 2.0, 2.0, -2.0])
    history = torch.tensor([0, 1, 1, 4, 7], dtype=torch.int32)
    result = reference.penalize(x, history, 0.5, 0.25, 2.0)
    assert result.tolist() == [2.0, -4.0, 1.0, 1.0 - 0.5 - 2 * 0.25, -4.0 - 0.5 - 3 * 0.25]


def test_a_seed_gives_its_token_whatever_the_batch(arguments: Make) -> None:
    logits = torch.randn(6, 101)
    rows = [HOT | {"seeds": seed, "positions": 7} for seed in (0, 1, -1, 2**40, 0, 5)]
    together = sample(arguments(logits, rows))
    alone = [sample(arguments(logits[i : i + 1], [row]))[0] for i, row in enumerate(rows)]
    backwards = sample(arguments(logits.flip(0).contiguous(), rows[::-1]))
    assert together == alone == backwards[::-1]


def test_zero_is_a_seed(arguments: Make) -> None:
    logits = torch.zeros(1, 997)
    rows = [[HOT | {"seeds": seed, "positions": i}] for seed in (0, 0, 1) for i in range(8)]
    tokens = [sample(arguments(logits, row))[0] for row in rows]
    assert tokens[:8] == tokens[8:16]
    assert tokens[:8] != tokens[16:]
    assert len(set(tokens[:8])) > 1


def test_ids_past_the_vocabulary_are_never_chosen(arguments: Make) -> None:
    logits = torch.zeros(200, 12)
    logits[:, 7:] = 50.0
    rows = [(HOT if i % 2 else {}) | {"positions": i} for i in range(200)]
    assert max(sample(arguments(logits, rows, vocab_size=7))) < 7


def test_history_counts_what_was_chosen(arguments: Make) -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0]] * 3)
    history = torch.tensor([[0, 1, 0]] * 3, dtype=torch.int32)
    args = arguments(logits, [{}] * 3, slots=[2, -1, 0], history=history)
    assert sample(args) == [1, 0, 1]
    assert sample(args) == [1, 0, 1]
    assert history.tolist() == [[0, 5, 0], [0, 1, 0], [0, 5, 0]]


def test_mark_prompt() -> None:
    history = torch.tensor([[9, 9, 9, 9]] * 2, dtype=torch.int32)
    zero, one = torch.tensor([0]), torch.tensor([1])
    mark_prompt(torch.tensor([1, 3, 1]), start=zero, slot=one, history=history)
    assert history.tolist() == [[9, 9, 9, 9], [0, 1, 0, 1]]
    mark_prompt(torch.tensor([0]), start=torch.tensor([3]), slot=one, history=history)
    mark_prompt(torch.tensor([2]), start=zero, slot=-one, history=history)
    assert history.tolist() == [[9, 9, 9, 9], [1, 1, 0, 1]]
    with pytest.raises(ValueError, match=r"mark_prompt: tokens: expected 0 … 3, got \[4\]"):
        mark_prompt(torch.tensor([4]), start=zero, slot=one, history=history)


WRONG = {
    "type of top_k": (2, lambda t: t.int(), "top_k: expected dtype"),
    "type of temperature": (1, lambda t: t.double(), "temperature: expected dtype"),
    "rows of seeds": (8, lambda t: t[:1], "seeds: expected shape"),
    "width of the history": (11, lambda t: t[:, :-1].contiguous(), "history: expected shape"),
    "vocabulary of none": (12, lambda _: 0, "vocab_size: expected 1 … 9, got 0"),
    "vocabulary past the logits": (12, lambda _: 10, "vocab_size: expected 1 … 9, got 10"),
    "slot past the history": (10, lambda t: t + 2, "slots: expected -1 or 0 … 1, got 2"),
}


@pytest.mark.parametrize(("index", "change", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments(arguments: Make, index: int, change: Callable[[Any], Any], message: str) -> None:
    args = arguments(torch.randn(2, 9), [{}, {}])
    args[index] = change(args[index])
    with pytest.raises(ValueError, match="sample_tokens: " + message):
        torch.ops.cuda_kernels.sample_tokens(*args)


def test_opcheck(arguments: Make) -> None:
    check_operator("sample_tokens", *arguments(torch.randn(2, 9), [HOT, {}], slots=[1, -1]))
    state = torch.zeros(2, 9, dtype=torch.int32)
    check_operator("mark_prompt", torch.tensor([1, 2]), torch.tensor([0]), torch.tensor([1]), state)


def test_compile_without_graph_breaks(arguments: Make) -> None:
    args = arguments(torch.randn(2, 33), [HOT, {}])
    want = sample([*args[:11], args[11].clone(), args[12]])
    compiled = torch.compile(torch.ops.cuda_kernels.sample_tokens, fullgraph=True, backend="aot_eager")
    assert compiled(*args).tolist() == want
    assert int(args[11].sum()) == 4
