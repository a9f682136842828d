"""The sampling kernels, in the interpreter without a GPU, against the reference: the very same tokens and counts."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from cuda_kernels.sampling import launch, noise, reference
from cuda_kernels.sampling.configs import SampleConfig
from cuda_kernels.sampling.layout import SamplingRows
from cuda_kernels.testing import poisoned

Make = Callable[..., Any]

# Small tiles: several blocks a row, lists that overflow.
CONFIG = SampleConfig(block=256, group=8, most=16, list_size=64, row_block=512, scan_warps=4, choose_warps=4)
VOCABULARY = 1001
INF, NAN = float("inf"), float("nan")

PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1}
ROWS = {
    "greedy": {},
    "greedy with penalties": PENALTIES,
    "hot": {"temperature": 1.5},
    "top_k 1": {"temperature": 1.0, "top_k": 1},
    "top_k": {"temperature": 0.7, "top_k": 7},
    "top_k over the vocabulary": {"temperature": 0.7, "top_k": 10**9},
    "top_k past the list": {"temperature": 2.0, "top_k": 300, "top_p": 0.9},
    "top_p": {"temperature": 1.0, "top_p": 0.5},
    "top_p 0": {"temperature": 1.0, "top_p": 0.0},
    "min_p": {"temperature": 1.0, "min_p": 0.2},
    "all": {"temperature": 0.7, "top_k": 12, "top_p": 0.9, "min_p": 0.05, **PENALTIES},
}
LOGITS = {
    "random": lambda: torch.randn(VOCABULARY) * 3,
    "flat": lambda: torch.randn(VOCABULARY) * 0.1,
    "all equal": lambda: torch.zeros(VOCABULARY),
    "nan": lambda: torch.where(torch.rand(VOCABULARY) < 0.5, NAN, torch.randn(VOCABULARY)),
    "infinite": lambda: torch.where(torch.rand(VOCABULARY) < 0.01, INF, torch.randn(VOCABULARY)),
    "one finite": lambda: torch.full((VOCABULARY,), -INF).index_fill_(0, torch.tensor(700), -3.0),
    "none finite": lambda: torch.full((VOCABULARY,), NAN),
}


def run(args: list[Any], config: SampleConfig) -> torch.Tensor:
    out = poisoned((args[0].shape[0],), torch.int64, args[0].device)
    logits, *others = args
    names = [field.name for field in fields(SamplingRows)]
    rows = SamplingRows(**dict(zip(names, others, strict=False)))
    launch.sample_tokens(logits, rows, *others[len(names) :], out=out, config=config)
    return out


def compare(args: list[Any], config: SampleConfig) -> None:
    host = [arg.cpu().clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    want = torch.ops.cuda_kernels.sample_tokens(*host)
    have = run(args, config)
    assert have.tolist() == want.tolist()
    assert torch.equal(args[11].cpu(), host[11])


def random_history(rows: int) -> torch.Tensor:
    seen = torch.rand(rows, VOCABULARY) < 0.2
    return torch.randint(0, 9, (rows, VOCABULARY), dtype=torch.int32) * seen


@pytest.mark.parametrize("kind", ROWS.keys())
def test_rows_on_random_logits(arguments: Make, device: torch.device, kind: str) -> None:
    row = ROWS[kind] | {"seeds": int(torch.randint(-(2**62), 2**62, ())), "positions": int(torch.randint(0, 2**40, ()))}
    logits = LOGITS["random"]()[None].to(device)
    compare(arguments(logits, [row], history=random_history(1).to(device), vocab_size=990), CONFIG)


@pytest.mark.parametrize("kind", [name for name in LOGITS if name != "random"])
def test_odd_logits(arguments: Make, device: torch.device, kind: str) -> None:
    rows = [ROWS[name] for name in ("greedy", "hot", "top_k", "top_p", "min_p", "all")]
    logits = LOGITS[kind]().expand(len(rows), VOCABULARY).contiguous().to(device)
    compare(arguments(logits, rows, history=random_history(len(rows)).to(device)), CONFIG)


def test_batch_with_padding(arguments: Make, device: torch.device) -> None:
    rows = [ROWS["hot"], ROWS["all"], ROWS["greedy"]]
    logits = torch.randn(3, VOCABULARY, device=device)
    args = arguments(logits, rows, slots=[3, -1, 0], history=random_history(4).to(device))
    before = args[11].clone()
    compare(args, SampleConfig())
    assert torch.equal(args[11][1:3], before[1:3])


@triton.jit
def words_kernel(p_words, p_position, p_seed, N: tl.constexpr):
    counters = tl.arange(0, N)
    w0, w1, w2, w3 = noise.philox_words(counters, tl.load(p_position), tl.load(p_seed))
    tl.store(p_words + counters * 4, w0.to(tl.int64))
    tl.store(p_words + counters * 4 + 1, w1.to(tl.int64))
    tl.store(p_words + counters * 4 + 2, w2.to(tl.int64))
    tl.store(p_words + counters * 4 + 3, w3.to(tl.int64))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 5), (-3, 2**40 + 7), (2**62 + 12345, 2**33)])
def test_words_are_those_of_the_reference(device: torch.device, seed: int, position: int) -> None:
    words = poisoned((64,), torch.int64, device)
    words_kernel[(1,)](words, torch.tensor([position], device=device), torch.tensor([seed], device=device), N=16)
    counters = torch.arange(16)
    want = reference.philox(counters, torch.full_like(counters, position), seed)
    assert words.tolist() == torch.stack(want, 1).flatten().tolist()


@pytest.mark.parametrize(("start", "slot"), [(0, 1), (4, 2), (0, -1), (0, 3)])
def test_mark_prompt(device: torch.device, start: int, slot: int) -> None:
    history = torch.randint(0, 9, (3, 4097), dtype=torch.int32)
    tokens = torch.randint(0, 4097, (1500,))
    marked = history.clone().to(device)
    place = (torch.tensor([start]), torch.tensor([slot]))
    launch.mark_prompt(tokens.to(device), *(t.to(device) for t in place), marked)
    if slot < 3:
        reference.mark_prompt(tokens, *place, history)
    assert torch.equal(marked.cpu(), history)
