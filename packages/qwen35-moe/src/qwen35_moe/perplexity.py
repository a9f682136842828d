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
from cuda_kernels.int4 import GROUP_SIZES
from torch.nn import functional

from qwen35_moe.checkpoint import Checkpoint
from qwen35_moe.checkpoint.load import load_decoder, quantized_columns
from qwen35_moe.config import read_config
from qwen35_moe.engine import Engine
from qwen35_moe.errors import PromptError
from qwen35_moe.model import Decoder, Int4
from qwen35_moe.quantize import check_group_size

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

    Raises PromptError where there is no token to predict, or a window has no room for one.
    """
    if length < 2:
        raise PromptError(f"window: expected at least 2 tokens, got {length}")
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
    """Return the loss of a loaded program, which gives logits of one position a call.

    The loss raises PromptError where a window is longer than the program's context allows.
    """

    def loss_of(window: list[int]) -> float:
        if len(window) - 1 > engine.info.context:
            raise PromptError(f"window: {len(window) - 1} tokens do not fit the context of {engine.info.context}")
        return sum(
            _nats(engine.prefill([token], start=position), torch.tensor([following], device=engine.device.torch))
            for position, (token, following) in enumerate(pairwise(window))
        )

    return loss_of


def int4_forms(folder: Path, group_size: int | None = None) -> Iterator[Int4]:
    """Yield the int4 forms of a checkpoint: each group size, or the one given, with float and with int8 activations.

    Group sizes that do not divide every matrix are left out. Raises ExportError where that is the one given.
    """
    matrices = dict(quantized_columns(Checkpoint(folder), read_config(folder)))
    fitting = [size for size in GROUP_SIZES if all(columns % size == 0 for columns in matrices.values())]
    if group_size is not None:
        for name, columns in matrices.items():
            check_group_size(name, columns, group_size)
        fitting = [group_size]
    for size in fitting:
        yield Int4(group_size=size)
        yield Int4(group_size=size, activations="int8")


def _nats(logits_TV: torch.Tensor, targets_T: torch.Tensor) -> float:
    return float(functional.cross_entropy(logits_TV, targets_T, reduction="sum"))
