"""The attention kernels (interpreted where there is no GPU) against float64; outputs and tails are poisoned first."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.attention import launch, reference
from cuda_kernels.attention.layout import sizes_of
from cuda_kernels.testing import assert_close, poisoned, relative_error

Make = Callable[..., Any]

DECODE = {
    "Q4-G2-D16-R8": ({"heads": (4, 2), "size": 16, "rotary": 8, "context": 40}, (0, 17, 39)),
    "Q3-G1-D64-R64": ({"heads": (3, 1), "size": 64, "rotary": 64, "context": 33}, (32, 1, 31)),
    "Q2-G2-D16-R0-L700": ({"heads": (2, 2), "size": 16, "rotary": 0, "context": 700}, (699,)),
}
# Rows, heads, first position: tiles of one row, a row short of a tile, one over, and earlier chunks.
PREFILL = {
    "T1-start0": (1, (4, 2), 0),
    "T1-start38": (1, (4, 2), 38),
    "T15-start1": (15, (4, 1), 1),
    "T16-start24": (16, (2, 1), 24),
    "T17-start0": (17, (6, 2), 0),
    "T40-start0": (40, (2, 2), 0),
}


def ints(case: Any, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=case.qkv.device)


def poisoned_out(case: Any) -> torch.Tensor:
    sizes = sizes_of(*case.parts)
    return poisoned((sizes.rows, sizes.width), case.qkv.dtype, case.qkv.device)


def run_decode(case: Any, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    out = poisoned_out(case)
    launch.attention_decode(*case.parts, positions, slots, out=out)
    return out


def run_prefill(case: Any, start: int, slot: int) -> torch.Tensor:
    out = poisoned_out(case)
    launch.attention_prefill(*case.parts, ints(case, start), ints(case, slot), out=out)
    return out


@pytest.mark.parametrize(("shape", "positions"), DECODE.values(), ids=DECODE.keys())
def test_decode(problem: Make, shape: dict[str, Any], positions: tuple[int, ...]) -> None:
    rows = len(positions)
    case = problem(rows + 1, slots=4, **shape)
    order = (3, 0, 1)[:rows]
    places, slots = ints(case, *positions, 0), ints(case, *order, -1)
    for position, slot in zip(positions, order, strict=True):
        case.fill(slot, position)
    expected = torch.stack([case.expected(row, positions[row], slot) for row, slot in enumerate(order)])
    other = case.clone()
    out = run_decode(case, places, slots)
    assert_close(out[:rows], expected, torch.float32)
    assert not out[rows].any()
    reference.attention_decode(*other.parts, places, slots)
    for have, want in zip(case.tensors[4:], other.tensors[4:], strict=True):
        assert torch.equal(have.isnan(), want.isnan())
        assert relative_error(have.nan_to_num(), want.nan_to_num()) < 1e-6


@pytest.mark.parametrize("group", [32, 128])
def test_decode_int8(problem: Make, group: int) -> None:
    case = problem(2, heads=(8, 1), size=16)
    case.fill(1, 30)
    places, slots = ints(case, 30, 0), ints(case, 1, -1)
    expected = case.expected(0, 30, 1)
    values = poisoned((2, 2, 64), torch.int8, case.qkv.device)
    scale, group_sum = (poisoned((2, 128 // group), torch.float32, case.qkv.device) for _ in range(2))
    outputs = {"values": values, "scale": scale, "group_sum": group_sum}
    launch.attention_decode_int8(*case.parts, places, slots, group, **outputs)
    rows = int4.dequantize_activation(values, scale)
    assert_close(rows[0], expected, "int8")
    assert not rows[1].any()
    assert relative_error(group_sum, rows.unflatten(1, (-1, group)).sum(-1)) < 1e-5


def test_decode_row_alone_and_in_a_batch(problem: Make) -> None:
    case = problem(5, heads=(2, 1), context=100, slots=5)
    positions = [0, 20, 40, 60, 99]
    for slot, position in enumerate(positions):
        case.fill(slot, position)
    together = run_decode(case, ints(case, *positions), ints(case, *range(5)))
    for row in (0, 4):
        alone = run_decode(case.rows(row, row + 1), ints(case, positions[row]), ints(case, row))
        assert_close(alone[0], together[row].double(), torch.float32)


def test_decode_scores_over_the_range_of_exp(problem: Make) -> None:
    case = problem(1, heads=(1, 1), context=70)
    case.fill(0, 69)
    case.cache.keys[0, 0, :69] *= 300.0
    expected = case.expected(0, 69, 0)
    assert_close(run_decode(case, ints(case, 69), ints(case, 0))[0], expected, torch.float32)


@pytest.mark.parametrize(("rows", "heads", "start"), PREFILL.values(), ids=PREFILL.keys())
def test_prefill(problem: Make, rows: int, heads: tuple[int, int], start: int) -> None:
    case = problem(rows, heads=heads)
    case.fill(2, start)
    other = case.clone()
    out = run_prefill(case, start, 2)
    want = reference.attention_prefill(*other.parts, ints(case, start), ints(case, 2))
    assert_close(out, want.double(), torch.float32)
    for have, then in zip(case.tensors[4:], other.tensors[4:], strict=True):
        assert torch.equal(have.isnan(), then.isnan())
        assert relative_error(have.nan_to_num(), then.nan_to_num()) < 1e-6


def test_prefill_float16(problem: Make) -> None:
    case = problem(20, heads=(4, 1), size=32, rotary=16, dtype=torch.float16)
    other = case.clone()
    want = reference.attention_prefill(*other.parts, ints(case, 0), ints(case, 0))
    assert_close(run_prefill(case, 0, 0), want.double(), torch.float16)


@pytest.mark.parametrize("slot", [-1, 3], ids=["padding", "out of range"])
def test_padding_touches_nothing(problem: Make, slot: int) -> None:
    case = problem(3)
    case.qkv[:] = float("nan")
    for out in (run_prefill(case, 0, slot), run_decode(case, ints(case, 0, 1, 2), ints(case, slot, slot, slot))):
        assert torch.equal(out, torch.zeros_like(out))
    assert case.cache.keys.isnan().all()
    assert case.cache.values.isnan().all()
