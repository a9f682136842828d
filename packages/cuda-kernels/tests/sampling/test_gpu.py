"""Sampling on a GPU at the size of a real vocabulary: the tokens of the reference, graph capture, torch.compile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_kernels.sampling import reference
from cuda_kernels.testing import check_operator

pytestmark = pytest.mark.gpu

Make = Callable[..., Any]
VOCABULARY, IDS = 248_320, 248_077
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1}
ROWS = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.3},
    {"temperature": 1.2, "min_p": 0.1},
    {"temperature": 0.8, "top_k": 64, "top_p": 0.8, "min_p": 0.02, **PENALTIES},
    {"temperature": 1.5, "top_k": 1000, "top_p": 0.99, **PENALTIES},
    {"temperature": 1.0, "top_k": 10**9},
]


def compare(args: list[Any]) -> None:
    host = [arg.cpu().clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    want = torch.ops.cuda_kernels.sample_tokens(*host)
    assert torch.ops.cuda_kernels.sample_tokens(*args).tolist() == want.tolist()
    assert torch.equal(args[11].cpu(), host[11])


@pytest.mark.parametrize("scale", [0.3, 3.0], ids=["flat", "peaked"])
def test_tokens_of_the_reference(arguments: Make, scale: float) -> None:
    logits = torch.randn(len(ROWS), VOCABULARY, device="cuda") * scale
    rows = [row | {"seeds": 1000 + i, "positions": 7 * i} for i, row in enumerate(ROWS)]
    history = torch.randint(0, 9, logits.shape, dtype=torch.int32, device="cuda")
    compare(arguments(logits, rows, history=history, vocab_size=IDS))


def test_neighbouring_candidates(arguments: Make) -> None:
    logits = torch.randn(1, VOCABULARY, device="cuda")
    logits[0, 1000:1500] += 20.0
    compare(arguments(logits, [{"temperature": 1.0, "top_k": 50, "top_p": 0.9}]))


@pytest.mark.parametrize("vocabulary", [1, 2, 31, 40_001])
def test_odd_vocabularies(arguments: Make, vocabulary: int) -> None:
    logits = torch.randn(len(ROWS), vocabulary, device="cuda")
    compare(arguments(logits, [row | {"positions": i} for i, row in enumerate(ROWS)]))


def test_graph_replays(arguments: Make) -> None:
    logits = torch.randn(2, VOCABULARY, device="cuda")
    args = arguments(logits, [{"temperature": 1.0, "seeds": 3}, ROWS[6]], vocab_size=IDS)
    torch.ops.cuda_kernels.sample_tokens(*args)
    args[11].zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = torch.ops.cuda_kernels.sample_tokens(*args)
        args[9].add_(1)
    args[9].zero_()
    args[11].zero_()
    other = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    for step in range(100):
        graph.replay()
        churn = torch.randn(1000 + step, device="cuda")
        want = torch.ops.cuda_kernels.sample_tokens(*other)
        other[9].add_(1)
        assert torch.equal(tokens, want), f"replay {step}"
        del churn
    assert torch.equal(args[11], other[11])


def test_mark_prompt_and_opcheck(arguments: Make) -> None:
    history = torch.randint(0, 9, (3, VOCABULARY), dtype=torch.int32, device="cuda")
    tokens = torch.randint(0, VOCABULARY, (5000,), device="cuda")
    start, slot = torch.tensor([0], device="cuda"), torch.tensor([2], device="cuda")
    want = history.cpu().clone()
    reference.mark_prompt(tokens.cpu(), start.cpu(), slot.cpu(), want)
    torch.ops.cuda_kernels.mark_prompt(tokens, start, slot, history)
    assert torch.equal(history.cpu(), want)
    check_operator("mark_prompt", tokens, start, slot, history)
    args = arguments(torch.randn(2, 500, device="cuda"), [ROWS[1], ROWS[6]])
    check_operator("sample_tokens", *args)
    tokens = torch.compile(torch.ops.cuda_kernels.sample_tokens, fullgraph=True)(*args)
    assert tokens.shape == (2,)
