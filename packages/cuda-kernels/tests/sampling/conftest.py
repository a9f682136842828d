"""Sampling problems: the arguments of `sample_tokens` from one dictionary a row."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

OFF = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seeds": 0,
    "positions": 0,
}


@pytest.fixture
def arguments() -> Callable[..., list[Any]]:
    """Return a function: logits (B, V) and what differs from "all off" in each row, to the operator's arguments."""

    def make(
        logits: torch.Tensor,
        rows: Sequence[dict[str, float]],
        *,
        slots: Sequence[int] | None = None,
        history: torch.Tensor | None = None,
        vocab_size: int | None = None,
    ) -> list[Any]:
        device = logits.device
        columns = {key: [row.get(key, value) for row in rows] for key, value in OFF.items()}
        tensors = [
            torch.tensor(column, dtype=torch.int64 if isinstance(OFF[key], int) else torch.float32, device=device)
            for key, column in columns.items()
        ]
        places = torch.tensor(list(slots) if slots is not None else list(range(len(rows))), device=device)
        if history is None:
            history = torch.zeros(len(rows), logits.shape[1], dtype=torch.int32, device=device)
        return [logits, *tensors, places, history, vocab_size or logits.shape[1]]

    return make
