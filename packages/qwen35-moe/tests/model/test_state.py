"""The eager model over its slotted state: splits of a prompt, interleaved slots, used slots, padding."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from qwen35_moe.checkpoint import load_decoder
from qwen35_moe.model import Decoder, Int4

PROMPT = 70
ROUNDING = 1e-4
"""Relative norm of what another order of float32 sums may change in logits; 5e-6 is usual, 5e-5 was seen."""


@pytest.fixture(scope="module", params=[None, Int4(group_size=32)], ids=["dense", "int4"])
def decoder(request: pytest.FixtureRequest, small_checkpoint: Path) -> Iterator[Decoder]:
    with torch.no_grad():
        yield load_decoder(small_checkpoint, int4=request.param, slots=3, context=96)


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 301, (PROMPT,))


def prefill(decoder: Decoder, tokens: torch.Tensor, *, start: int = 0, slot: int = 0) -> torch.Tensor:
    return decoder.logits(decoder.prefill(tokens, torch.tensor([start]), torch.tensor([slot])))[-1]


def decode(decoder: Decoder, tokens: list[int], positions: list[int], slots: list[int]) -> torch.Tensor:
    rows = (torch.tensor(values) for values in (tokens, positions, slots))
    return decoder.logits(decoder.decode(*rows))


def state_of(decoder: Decoder, slot: int) -> dict[str, torch.Tensor]:
    return {name: buffer[slot].clone() for name, buffer in decoder.named_buffers()}


@pytest.mark.parametrize("decoder", [None], ids=["dense"], indirect=True)
def test_every_split_of_a_prompt_gives_the_same_logits(decoder: Decoder, tokens: torch.Tensor) -> None:
    whole = prefill(decoder, tokens)
    for split in range(1, PROMPT):
        prefill(decoder, tokens[:split], slot=1)
        rest = prefill(decoder, tokens[split:], start=split, slot=1)
        assert float((rest - whole).norm() / whole.norm()) < ROUNDING, f"split at {split}"


def test_prompt_fed_token_by_token_gives_the_same_logits(decoder: Decoder, tokens: torch.Tensor) -> None:
    whole = prefill(decoder, tokens)
    prefill(decoder, tokens[:1])
    for position in range(1, PROMPT):
        last = decode(decoder, [int(tokens[position])], [position], [0])[0]
    assert float((last - whole).norm() / whole.norm()) < ROUNDING


def test_two_sequences_interleaved_are_bitwise_what_they_are_alone(decoder: Decoder, tokens: torch.Tensor) -> None:
    one, other = tokens[:20], tokens[20:50]

    def alone(prompt: torch.Tensor, slot: int) -> list[torch.Tensor]:
        first = prefill(decoder, prompt, slot=slot)
        return [first] + [decode(decoder, [7], [len(prompt) + i], [slot])[0] for i in range(5)]

    expected = [alone(one, 0), alone(other, 1)]
    given = [[prefill(decoder, one, slot=2)], [prefill(decoder, other, slot=0)]]
    for i in range(5):
        given[0].append(decode(decoder, [7], [len(one) + i], [2])[0])
        given[1].append(decode(decoder, [7], [len(other) + i], [0])[0])
    for a, b in zip(expected, given, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_used_slot_shows_nothing_of_its_last_sequence_even_if_it_left_nan(
    decoder: Decoder, tokens: torch.Tensor
) -> None:
    expected = [prefill(decoder, tokens, slot=0), decode(decoder, [5], [PROMPT], [0])[0]]
    for name, buffer in decoder.named_buffers():
        buffer.fill_(torch.nan)
        assert buffer.isnan().all(), name
    given = [prefill(decoder, tokens, slot=0), decode(decoder, [5], [PROMPT], [0])[0]]
    assert all(torch.equal(a, b) for a, b in zip(expected, given, strict=True))


def test_padding_rows_touch_nothing(decoder: Decoder, tokens: torch.Tensor) -> None:
    for buffer in decoder.buffers():
        buffer.zero_()
    for slot in range(3):
        prefill(decoder, tokens[:10], slot=slot)
    before = [state_of(decoder, slot) for slot in range(3)]
    alone = decode(decoder, [3], [10], [1])[0]
    after = state_of(decoder, 1)
    prefill(decoder, tokens[:10], slot=1)
    padded = decode(decoder, [9, 3, 0], [50, 10, 0], [-1, 1, -1])[1]
    assert float((padded - alone).norm() / alone.norm()) < 1e-5
    for slot, expected in ((0, before[0]), (2, before[2])):
        assert all(torch.equal(value, expected[name]) for name, value in state_of(decoder, slot).items())
    for name, value in state_of(decoder, 1).items():
        assert float((value - after[name]).norm()) <= 1e-5 * float(after[name].norm()), name
