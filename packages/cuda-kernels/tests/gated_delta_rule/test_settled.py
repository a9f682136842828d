"""Which states may be read early, by the launches that were noted; streams stand in for those of GPUs."""

from types import SimpleNamespace

import pytest
import torch
from cuda_kernels.gated_delta_rule import settled
from cuda_kernels.gated_delta_rule.layout import DeltaNetState


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the current stream, whose device and handle a test may change."""
    current = SimpleNamespace(device=torch.device("cuda", 0), cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(settled, "_written", {})
    return current


def state(slots: int = 2) -> DeltaNetState:
    return DeltaNetState(conv=torch.zeros(slots, 2, 4, 3), recurrent=torch.zeros(slots, 2, 5, 5))


def test_a_state_is_settled_unless_the_last_kernel_writes_it(stream: SimpleNamespace) -> None:
    one, other = state(), state()
    assert settled.is_settled(one)
    settled.note_writer(one)
    assert not settled.is_settled(one)
    assert settled.is_settled(other)
    settled.note_writer(other)
    assert settled.is_settled(one)


@pytest.mark.parametrize("part", ["conv", "recurrent"])
def test_memory_counts_and_not_the_tensor(stream: SimpleNamespace, part: str) -> None:
    whole = state(slots=3)
    front, back = (
        DeltaNetState(**{**dict.fromkeys(("conv", "recurrent"), torch.zeros(1)), part: getattr(whole, part)[piece]})
        for piece in (slice(0, 2), slice(1, 3))
    )
    settled.note_writer(front)
    assert not settled.is_settled(back)


def test_streams_and_devices_have_writers_of_their_own(stream: SimpleNamespace) -> None:
    one, other = state(), state()
    settled.note_writer(one)
    stream.device = torch.device("cuda", 1)  # whose default stream has the same handle
    settled.note_writer(other)
    stream.device = torch.device("cuda", 0)
    assert not settled.is_settled(one)
    stream.cuda_stream = 7
    assert settled.is_settled(one)
