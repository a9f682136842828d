"""Planners on their own: golden vectors, random blocks, verification, and the buffers of a method."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from export_passes import BackendConfig, DevicePartitioner, MethodConfig, PlanError, lower
from export_passes.lifetimes import Lifetime, lifetimes
from export_passes.memory_plan.greedy import greedy
from export_passes.memory_plan.naive import naive
from export_passes.memory_plan.plan import Block, Plan, peak_nbytes
from export_passes.memory_plan.planner import Planner
from export_passes.memory_plan.verify import verify
from export_passes.testing import Apply

PLANNERS = [pytest.param(greedy, id="greedy"), pytest.param(naive, id="naive")]


def blocks_of(*rows: tuple[int, int, int]) -> list[Block]:
    """Make blocks of (nbytes, first, last)."""
    return [Block(name=f"b{i}", nbytes=n, lifetime=Lifetime(a, b)) for i, (n, a, b) in enumerate(rows)]


def random_blocks(seed: int) -> list[Block]:
    rng = random.Random(seed)
    steps = rng.randint(1, 40)
    rows = []
    for _ in range(rng.randint(0, 60)):
        first = rng.randrange(steps)
        rows.append(
            (rng.choice([0, 1, 20, 64, 256, rng.randint(1, 5000)]), first, min(steps, first + rng.randint(0, 8)))
        )
    return blocks_of(*rows)


GOLDEN = [
    pytest.param([(16, 0, 9)] * 3, 16, 48, id="all-alive"),
    pytest.param([(256, 0, 3), (64, 4, 6), (64, 5, 7), (64, 6, 8)], 64, 256, id="three-within-one"),
    pytest.param([(64, 0, 6), (64, 3, 5)], 64, 128, id="alias-extends-its-base"),
    pytest.param([(20, 0, 1), (20, 1, 2)], 32, 52, id="20-bytes-aligned-to-32"),
    pytest.param([(100, 0, 1), (100, 2, 3), (100, 4, 5)], 256, 100, id="one-after-another"),
    pytest.param([(0, 0, 5), (8, 0, 5)], 64, 8, id="no-bytes"),
    pytest.param([], 64, 0, id="nothing"),
]


@pytest.mark.parametrize(("rows", "alignment", "nbytes"), GOLDEN)
def test_greedy_golden(rows: Sequence[tuple[int, int, int]], alignment: int, nbytes: int) -> None:
    blocks = blocks_of(*rows)
    plan = greedy(blocks, alignment=alignment)
    verify(blocks, plan, alignment=alignment)
    assert plan.nbytes == nbytes


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("alignment", [1, 64, 256])
def test_random_plans_hold(planner: Planner, alignment: int) -> None:
    for seed in range(150):
        blocks = random_blocks(seed)
        plan = planner(blocks, alignment=alignment)
        verify(blocks, plan, alignment=alignment)
        assert peak_nbytes(blocks) <= plan.nbytes <= naive(blocks, alignment=alignment).nbytes


def test_planners_change_nothing_and_repeat_themselves() -> None:
    blocks = random_blocks(7)
    before = list(blocks)
    assert greedy(blocks, alignment=64) == greedy(blocks, alignment=64)
    assert blocks == before


BAD = [
    pytest.param((0, 0), 64, 64, "alive together", id="same-bytes"),
    pytest.param((0, 32), 64, 96, "expected a multiple of 64", id="misaligned"),
    pytest.param((0, 64), 64, 127, "within the buffer", id="outside"),
    pytest.param((0, -64), 64, 128, "expected a multiple", id="negative"),
    pytest.param((0,), 64, 128, "1 blocks for 2", id="missing"),
]


@pytest.mark.parametrize(("offsets", "alignment", "nbytes", "message"), BAD)
def test_verify_refuses(offsets: tuple[int, ...], alignment: int, nbytes: int, message: str) -> None:
    blocks = blocks_of((64, 0, 3), (64, 3, 5))
    with pytest.raises(PlanError, match=message):
        verify(blocks, Plan(nbytes=nbytes, offsets=offsets), alignment=alignment)


def test_lifetimes_are_inclusive_and_follow_every_touch() -> None:
    found = lifetimes([["a", "b"], ["b"], ["c", "a"]], from_start=["x"], to_end=["c", "y"])
    assert found == {
        "x": Lifetime(0, 0), "a": Lifetime(0, 2), "b": Lifetime(0, 1), "c": Lifetime(2, 3), "y": Lifetime(3, 3)
    }  # fmt: skip
    assert found["b"].overlaps(found["a"])
    assert not found["b"].overlaps(found["c"])


def layered(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.tanh(x) + 1
    return x


def test_planned_buffers_reuse_memory_at_upper_bounds() -> None:
    dynamic = {"args": ({0: torch.export.Dim("T", min=2, max=8)},)}
    exported = torch.export.export(Apply(layered), (torch.ones(5, 3),), dynamic_shapes=dynamic)
    (method,) = lower({"f": exported}).program.methods
    assert [(b.device, b.kind, b.nbytes) for b in method.buffers] == [("cpu", "io", 96), ("cpu", "scratch", 224)]
    (naive_method,) = lower({"f": exported}, planner=naive).program.methods
    assert [b.nbytes for b in naive_method.buffers] == [96, 10 * 128 + 96]


KINDS: list[tuple[str, MethodConfig, list[tuple[str, str]]]] = [
    ("defaults", MethodConfig(), [("cpu", "io"), ("cuda:1", "scratch")]),
    ("planned-inputs", MethodConfig(plan_inputs=True), [("cpu", "io"), ("cuda:1", "scratch")]),
    ("outputs-on-device", MethodConfig(skip_d2h_for_method_outputs=True), [("cuda:1", "io"), ("cuda:1", "scratch")]),
    ("callers-outputs", MethodConfig(plan_outputs=False), [("cuda:1", "scratch")]),
]


@pytest.mark.parametrize(("config", "expected"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])
def test_one_buffer_a_device_and_kind(
    config: MethodConfig, expected: list[tuple[str, str]], device: Callable[..., object]
) -> None:
    exported = torch.export.export(Apply(layered), (torch.ones(5, 3),))
    place = DevicePartitioner(device(1))
    (method,) = lower({"f": exported}, BackendConfig(partitioner=place, default=config)).program.methods
    assert [(b.device, b.kind) for b in method.buffers] == expected
