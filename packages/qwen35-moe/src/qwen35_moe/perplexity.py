"""Loss of a model on a text, for the unquantized checkpoint, its int4 forms, or an exported program.

A text is cut at end-of-text marks into documents and these into windows; each is read from an empty state behind an
end-of-text mark, so that every token of the text, and the mark that closes a document, is predicted once.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import cuda_kernels
import torch
from torch.nn import functional

from qwen35_moe.checkpoint.load import load_decoder
from qwen35_moe.engine import Engine
from qwen35_moe.errors import PromptError
from qwen35_moe.model import Decoder, Int4

END_OF_TEXT = "<|endoftext|>"
_LOGIT_ROWS = 512

LossOfWindow = Callable[[list[int]], float]
"""Nats of the tokens of a window after its first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Summed loss over a text.

    nats: natural logarithm of one over the probability of all tokens.
    """

    tokens: int
    nats: float

    @property
    def per_token(self) -> float:
        """Return nats a token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Return exp of nats a token."""
        return math.exp(self.per_token)


def windows(ids: Sequence[int], *, end: int, length: int) -> list[list[int]]:
    """Cut ids behind each ``end`` and again into at most ``length - 1`` tokens, and put ``end`` before each piece.

    Raises PromptError where there is no token to predict.
    """
    pieces: list[list[int]] = []
    document: list[int] = []
    for token in ids:
        document.append(token)
        if token == end or len(document) == length - 1:
            pieces.append([end, *document])
            document = []
    if document:
        pieces.append([end, *document])
    if not pieces:
        raise PromptError("text: expected at least one token, got none")
    return pieces


def total_loss(pieces: Sequence[list[int]], loss_of: LossOfWindow, on_progress: Callable[[int, int], None]) -> Loss:
    """Sum the loss of windows; progress is told in tokens."""
    total, done, nats = sum(len(piece) - 1 for piece in pieces), 0, 0.0
    for piece in pieces:
        nats += loss_of(piece)
        done += len(piece) - 1
        on_progress(done, total)
    return Loss(tokens=total, nats=nats)


def checkpoint_loss(folder: Path, int4: Int4 | None, *, length: int, device: torch.device) -> LossOfWindow:
    """Return the loss of an eager model with the weights of a checkpoint folder, all positions of a window at once.

    Raises what `load_decoder` raises.
    """
    cuda_kernels.register()
    decoder: Decoder = load_decoder(folder, int4=int4, context=length).to(device)
    zero = torch.zeros(1, dtype=torch.int64, device=device)

    @torch.no_grad()
    def loss_of(window: list[int]) -> float:
        tokens_T = torch.tensor(window, device=device)
        hidden_TH = decoder.prefill(tokens_T[:-1], zero, zero)
        parts = zip(hidden_TH.split(_LOGIT_ROWS), tokens_T[1:].split(_LOGIT_ROWS), strict=True)
        return sum(_nats(decoder.logits(rows), targets) for rows, targets in parts)

    return loss_of


def program_loss(engine: Engine) -> LossOfWindow:
    """Return the loss of a loaded program, which gives logits of one position a call."""

    def loss_of(window: list[int]) -> float:
        return sum(
            _nats(engine.prefill([token], start=position), torch.tensor([following], device=engine.device.torch))
            for position, (token, following) in enumerate(pairwise(window))
        )

    return loss_of


def int4_forms() -> Iterator[Int4]:
    """Yield every int4 form: each group size with float and with int8 activations."""
    for group_size in (32, 64, 128):
        yield Int4(group_size=group_size)
        yield Int4(group_size=group_size, activations="int8")


def _nats(logits_TV: torch.Tensor, targets_T: torch.Tensor) -> float:
    return float(functional.cross_entropy(logits_TV, targets_T, reduction="sum"))
