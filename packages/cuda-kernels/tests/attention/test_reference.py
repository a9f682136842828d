"""The attention operators on the CPU: values, splitting, slots, bad arguments, opcheck and torch.compile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.attention.op import attention_decode, attention_decode_int8, attention_prefill
from cuda_kernels.testing import assert_close, check_operator, relative_error

CPU = torch.device("cpu")
Make = Callable[..., Any]

SHAPES = {
    "Q4-G2-D16-R8": {"heads": (4, 2), "size": 16, "rotary": 8},
    "Q3-G1-D32-R32": {"heads": (3, 1), "size": 32, "rotary": 32},
    "Q2-G2-D24-R0": {"heads": (2, 2), "size": 24, "rotary": 0},
}


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_decode_rows_at_their_own_positions(problem: Make, shape: dict[str, Any]) -> None:
    case = problem(4, on=CPU, slots=4, **shape)
    positions, slots = ints(0, 7, 0, 39), ints(2, 0, -1, 3)
    for position, slot in zip(positions.tolist(), slots.tolist(), strict=True):
        if slot >= 0:
            case.fill(slot, position)
    expected = [case.expected(row, int(positions[row]), int(slots[row])) for row in (0, 1, 3)]
    out = attention_decode(case.qkv, case.heads, case.cache, positions=positions, slots=slots)
    assert_close(out[[0, 1, 3]], torch.stack(expected), torch.float32)
    assert not out[2].any()


def test_bfloat16_within_its_bound(problem: Make) -> None:
    case = problem(1, on=CPU, size=64, rotary=16, dtype=torch.bfloat16)
    case.fill(0, 20)
    expected = case.expected(0, 20, 0)
    out = attention_decode(case.qkv, case.heads, case.cache, positions=ints(20), slots=ints(0))
    assert_close(out[0], expected, torch.bfloat16)


def test_prefill_rows_see_all_before_them(problem: Make) -> None:
    case = problem(9, on=CPU)
    case.fill(1, 5)
    out = attention_prefill(case.qkv, case.heads, case.cache, start=ints(5), slot=ints(1))
    expected = [case.expected(row, 5 + row, 1) for row in range(9)]
    assert_close(out, torch.stack(expected), torch.float32)


def test_split_at_every_position(problem: Make) -> None:
    rows = 24
    whole = problem(rows, on=CPU)
    want = attention_prefill(whole.qkv, whole.heads, whole.cache, start=ints(0), slot=ints(1))
    for cut in range(1, rows):
        # The cache still holds what the last try left behind; a new sequence must not see it.
        first, second = whole.rows(0, cut), whole.rows(cut, rows)
        parts = [attention_prefill(first.qkv, whole.heads, whole.cache, start=ints(0), slot=ints(1))]
        whole.cache.keys[1, :, cut:] = float("nan")
        whole.cache.values[1, :, cut:] = float("nan")
        parts.append(attention_prefill(second.qkv, whole.heads, whole.cache, start=ints(cut), slot=ints(1)))
        assert relative_error(torch.cat(parts), want) < 1e-6, f"split at {cut}"


def test_decode_continues_prefill(problem: Make) -> None:
    case = problem(12, on=CPU)
    want = attention_prefill(case.qkv, case.heads, case.cache, start=ints(0), slot=ints(0))
    for row in range(12):
        step = case.rows(row, row + 1)
        out = attention_decode(step.qkv, case.heads, case.cache, positions=ints(row), slots=ints(2))
        assert relative_error(out, want[row : row + 1]) < 1e-6, f"position {row}"


def test_interleaved_sessions_equal_sessions_alone(problem: Make) -> None:
    case = problem(10, on=CPU)
    alone = case.clone()

    def step(which: Any, row: int, slot: int) -> torch.Tensor:
        one = which.rows(row, row + 1)
        return attention_decode(one.qkv, which.heads, which.cache, positions=ints(row // 2), slots=ints(slot))

    mixed = [step(case, row, row % 2) for row in range(10)]
    for slot in (0, 1):
        for row in range(slot, 10, 2):
            assert torch.equal(step(alone, row, slot), mixed[row])


def test_padding_touches_nothing(problem: Make) -> None:
    case = problem(3, on=CPU)
    case.qkv[:] = float("nan")
    before = case.clone()
    out = attention_decode(case.qkv, case.heads, case.cache, positions=ints(0, 9, -1), slots=ints(-1, -1, -1))
    pre = attention_prefill(case.qkv, case.heads, case.cache, start=ints(0), slot=ints(-1))
    assert torch.equal(out, torch.zeros(3, 64))
    assert torch.equal(pre, torch.zeros(3, 64))
    for now, then in zip(case.tensors, before.tensors, strict=True):
        assert torch.equal(now.isnan(), then.isnan())


def test_no_rows(problem: Make) -> None:
    case = problem(0, on=CPU)
    none = torch.zeros(0, dtype=torch.int64)
    assert attention_decode(case.qkv, case.heads, case.cache, positions=none, slots=none).shape == (0, 64)
    assert attention_prefill(case.qkv, case.heads, case.cache, start=ints(0), slot=ints(0)).shape == (0, 64)


@pytest.mark.parametrize("group", [32, 64])
def test_int8_is_the_quantized_result(problem: Make, group: int) -> None:
    case = problem(2, on=CPU)
    case.fill(1, 3)
    both = {"positions": ints(3, 0), "slots": ints(1, -1)}
    out = attention_decode(case.qkv, case.heads, case.cache, **both)
    quantized = attention_decode_int8(case.qkv, case.heads, case.cache, **both, group_size=group)
    for have, want in zip(quantized, int4.quantize_activation(out, group_size=group), strict=True):
        assert torch.equal(have, want)


RANGES = [
    (
        "position past the cache",
        {"positions": ints(40), "slots": ints(0)},
        "attention_decode: positions: expected 0 … 39",
    ),
    ("negative position", {"positions": ints(-1), "slots": ints(0)}, "attention_decode: positions: expected 0 … 39"),
    ("slot past the cache", {"positions": ints(0), "slots": ints(3)}, "attention_decode: slots: expected -1 or 0 … 2"),
    ("slot below -1", {"positions": ints(0), "slots": ints(-2)}, "attention_decode: slots: expected -1 or 0 … 2"),
]


@pytest.mark.parametrize(("place", "message"), [r[1:] for r in RANGES], ids=[r[0] for r in RANGES])
def test_places_out_of_range(problem: Make, place: dict[str, torch.Tensor], message: str) -> None:
    case = problem(1, on=CPU)
    with pytest.raises(ValueError, match=message):
        attention_decode(case.qkv, case.heads, case.cache, **place)


def test_prefill_that_does_not_fit(problem: Make) -> None:
    case = problem(9, on=CPU)
    with pytest.raises(ValueError, match=r"attention_prefill: start: expected 0 … 31, to fit the cache, got 32"):
        attention_prefill(case.qkv, case.heads, case.cache, start=ints(32), slot=ints(0))


WRONG = {
    "width of the projection": (0, lambda t: t[:, :-1].contiguous(), "qkv: expected"),
    "strides of the projection": (0, lambda t: t.T.contiguous().T, "qkv: expected a contiguous"),
    "size of a norm": (1, lambda t: t[:-1], "q_norm: expected shape"),
    "length of rope": (3, lambda t: t[:-1], "rope: expected shape"),
    "odd rope": (3, lambda t: t[:, :-1].contiguous(), "rope: expected an even R"),
    "type of the cache": (4, lambda t: t.half(), "k_cache: expected dtype"),
    "shape of the values": (5, lambda t: t[:1], "v_cache: expected shape"),
    "type of positions": (6, lambda t: t.int(), "positions: expected dtype"),
    "number of slots": (7, lambda t: t[:1], "slots: expected shape"),
}


@pytest.mark.parametrize(("index", "change", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments(problem: Make, index: int, change: Callable[[Any], Any], message: str) -> None:
    args = [*problem(2, on=CPU).tensors, ints(0, 0), ints(0, 1), 1e-6]
    args[index] = change(args[index])
    with pytest.raises(ValueError, match="attention_decode: " + message):
        torch.ops.cuda_kernels.attention_decode(*args)


def test_opcheck(problem: Make) -> None:
    case = problem(2, on=CPU)
    case.cache.keys.zero_()
    case.cache.values.zero_()
    check_operator("attention_decode", *case.tensors, ints(3, 0), ints(1, -1), 1e-6)
    check_operator("attention_decode_int8", *case.tensors, ints(3, 0), ints(1, -1), 1e-6, 32)
    check_operator("attention_prefill", *case.tensors, ints(3), ints(1), 1e-6)


def test_compile_without_graph_breaks(problem: Make) -> None:
    case = problem(3, on=CPU)

    def chain(qkv: torch.Tensor, *state: torch.Tensor) -> torch.Tensor:
        first = torch.ops.cuda_kernels.attention_prefill(qkv, *state, ints(0), ints(0), 1e-6)
        last = torch.ops.cuda_kernels.attention_decode(qkv[2:], *state, ints(3), ints(0), 1e-6)
        return first.sum() + last.sum()

    eager, compiled = case.clone(), case.clone()
    want = chain(*eager.tensors)
    have = torch.compile(chain, fullgraph=True, backend="aot_eager")(*compiled.tensors)
    assert torch.equal(have, want)
    assert torch.equal(compiled.cache.keys.nan_to_num(), eager.cache.keys.nan_to_num())
