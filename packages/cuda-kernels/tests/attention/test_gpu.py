"""Attention on a GPU: real shapes, block borders, offsets past 2³¹, graph capture, torch.compile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.attention import reference
from cuda_kernels.attention.op import attention_decode, attention_decode_int8, attention_prefill
from cuda_kernels.testing import assert_close, check_operator, relative_error

pytestmark = pytest.mark.gpu

Make = Callable[..., Any]
MODEL = {"heads": (16, 2), "size": 256, "rotary": 64, "dtype": torch.bfloat16}
WIDTH = 16 * 256


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="cuda")


def prefill_expected(case: Any, start: int, slot: int) -> torch.Tensor:
    """Return the reference in float32, on a copy of the cache."""
    return reference.attention_prefill(*case.clone().parts, ints(start), ints(slot))


@pytest.mark.parametrize("context", [1, 31, 32, 33, 255, 256, 1341, 4096])
def test_decode(problem: Make, context: int) -> None:
    case = problem(3, context=4096, **MODEL)
    for slot in (0, 2):
        case.fill(slot, context - 1)
    place = {"positions": ints(context - 1, 0, 0), "slots": ints(2, -1, 0)}
    expected = torch.stack([case.expected(0, context - 1, 2), case.expected(2, 0, 0)])
    out = attention_decode(case.qkv, case.heads, case.cache, **place)
    assert_close(out[[0, 2]], expected, torch.bfloat16)
    assert not out[1].any()
    values, scale, _ = attention_decode_int8(case.qkv, case.heads, case.cache, **place, group_size=128)
    assert_close(int4.dequantize_activation(values, scale)[[0, 2]], expected, "int8")


@pytest.mark.parametrize("rows", [1, 2, 33])
def test_decode_batches(problem: Make, rows: int) -> None:
    case = problem(rows, context=700, slots=rows, **MODEL)
    positions = [(37 * row) % 700 for row in range(rows)]
    for row, position in enumerate(positions):
        case.fill(row, position)
    out = attention_decode(case.qkv, case.heads, case.cache, positions=ints(*positions), slots=ints(*range(rows)))
    expected = torch.stack([case.expected(row, positions[row], row) for row in range(rows)])
    assert_close(out, expected, torch.bfloat16)


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 63, 64, 65, 130, 255, 256, 257, *range(508, 515), 1341])
@pytest.mark.parametrize("start", [0, 812])
def test_prefill(problem: Make, tokens: int, start: int) -> None:
    case = problem(tokens, context=2304, **MODEL)
    case.fill(1, start)
    expected = prefill_expected(case, start, 1)
    out = attention_prefill(case.qkv, case.heads, case.cache, start=ints(start), slot=ints(1))
    assert_close(out, expected.double(), torch.bfloat16)
    assert case.cache.keys[1, :, start + tokens :].isnan().all()


SHAPES = {
    "Q32-G2-D256-bf16": ((32, 2), 256, torch.bfloat16),
    "Q4-G4-D128-f16": ((4, 4), 128, torch.float16),
    "Q6-G2-D64-bf16": ((6, 2), 64, torch.bfloat16),
    "Q6-G2-D64-f32": ((6, 2), 64, torch.float32),
}


@pytest.mark.parametrize(("heads", "size", "dtype"), SHAPES.values(), ids=SHAPES.keys())
def test_shapes_and_types(problem: Make, heads: tuple[int, int], size: int, dtype: torch.dtype) -> None:
    case = problem(100, heads=heads, size=size, rotary=size // 4, context=128, dtype=dtype)
    expected = prefill_expected(case, 0, 0)
    out = attention_prefill(case.qkv, case.heads, case.cache, start=ints(0), slot=ints(0))
    assert_close(out, expected.double(), dtype)
    one = case.rows(99, 100)
    last = attention_decode(one.qkv, case.heads, case.cache, positions=ints(99), slots=ints(0))
    assert_close(last, expected[99:].double(), dtype)


def test_split_prompts_agree(problem: Make) -> None:
    case = problem(300, context=512, **MODEL)
    whole = attention_prefill(case.qkv, case.heads, case.cache, start=ints(0), slot=ints(0))
    for cut in (1, 16, 129, 299):
        first, second = case.rows(0, cut), case.rows(cut, 300)
        parts = [
            attention_prefill(first.qkv, case.heads, case.cache, start=ints(0), slot=ints(1)),
            attention_prefill(second.qkv, case.heads, case.cache, start=ints(cut), slot=ints(1)),
        ]
        assert relative_error(torch.cat(parts), whole) < 5e-3, f"split at {cut}"


def test_same_input_same_bits(problem: Make) -> None:
    case = problem(1, context=4096, **MODEL)
    case.fill(0, 3000)
    place = {"positions": ints(3000), "slots": ints(0)}
    outs = [attention_decode(case.qkv, case.heads, case.cache, **place) for _ in range(20)]
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_caches_past_two_billion_elements(problem: Make) -> None:
    slots, context = 5, 2**31 // (4 * 2 * 256) + 64
    case = problem(40, context=context, slots=slots, **MODEL)
    assert case.cache.keys.numel() > 2**31
    case.fill(4, 100)
    expected = prefill_expected(case, 100, 4)
    out = attention_prefill(case.qkv, case.heads, case.cache, start=ints(100), slot=ints(4))
    assert_close(out, expected.double(), torch.bfloat16)
    one = case.rows(39, 40)
    out = attention_decode(one.qkv, case.heads, case.cache, positions=ints(139), slots=ints(4))
    assert_close(out, expected[39:].double(), torch.bfloat16)


def test_graph_replays(problem: Make) -> None:
    case = problem(2, context=256, **MODEL)
    eager = case.clone()
    positions, slots = ints(0, 0), ints(1, 0)
    run = lambda which, at: attention_decode(which.qkv, which.heads, which.cache, positions=at, slots=slots)  # noqa: E731
    run(case.clone(), positions)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(case, positions)
        positions.add_(1)
    positions.zero_()
    for step in range(100):
        graph.replay()
        churn = torch.randn(1000 + step, device="cuda")
        want = run(eager, ints(step, step))
        assert torch.equal(out, want), f"replay {step}"
        del churn


def test_opcheck_and_compile(problem: Make) -> None:
    case = problem(2, context=64, **MODEL)
    case.cache.keys.zero_()
    case.cache.values.zero_()
    check_operator("attention_decode", *case.tensors, ints(3, 0), ints(1, -1), 1e-6)
    check_operator("attention_decode_int8", *case.tensors, ints(3, 0), ints(1, -1), 1e-6, 128)
    check_operator("attention_prefill", *case.tensors, ints(3), ints(1), 1e-6)

    def chain(qkv: torch.Tensor, *state: torch.Tensor) -> torch.Tensor:
        first = torch.ops.cuda_kernels.attention_prefill(qkv, *state, ints(0), ints(0), 1e-6)
        last = torch.ops.cuda_kernels.attention_decode(qkv[1:], *state, ints(2), ints(0), 1e-6)
        return torch.cat((first, last)) * 2

    other = case.clone()
    want = chain(*case.tensors)
    have = torch.compile(chain, fullgraph=True)(*other.tensors)
    assert_close(have, want.double(), torch.bfloat16)
