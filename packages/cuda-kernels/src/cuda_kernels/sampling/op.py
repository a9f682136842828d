"""Operators of the sampling family: declarations and public functions."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from cuda_kernels.checks import FLOATS, check, check_tensor, checked
from cuda_kernels.library import Operator
from cuda_kernels.sampling import launch, reference
from cuda_kernels.sampling.cases import COMPILE_CASES
from cuda_kernels.sampling.layout import SamplingRows

__all__ = ["COMPILE_CASES", "OPERATORS", "mark_prompt", "sample_tokens"]


def _packed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(logits, rows, *rest)` with the flat arguments of the operator: the fields of rows in order."""
    names = [field.name for field in fields(SamplingRows)]

    def run(logits: torch.Tensor, *args: Any, **outputs: torch.Tensor) -> Any:
        rows = SamplingRows(**dict(zip(names, args, strict=False)))
        return function(logits, rows, *args[len(names) :], **outputs)

    return run


def _fake_sample_tokens(
    logits: torch.Tensor,
    rows: SamplingRows,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    history: torch.Tensor,
    vocab_size: int,
) -> torch.Tensor:
    name, device = "sample_tokens", logits.device
    check_tensor(name, "logits", logits, shape=("B", "V"), dtype=FLOATS)
    batch, vocabulary = logits.shape
    for field in fields(rows):
        dtype = torch.int64 if field.name == "top_k" else torch.float32
        check_tensor(name, field.name, getattr(rows, field.name), shape=(batch,), dtype=dtype, device=device)
    for argument, tensor in {"seeds": seeds, "positions": positions, "slots": slots}.items():
        check_tensor(name, argument, tensor, shape=(batch,), dtype=torch.int64, device=device)
    check_tensor(name, "history", history, shape=("S", vocabulary), dtype=torch.int32, device=device)
    check(1 <= vocab_size <= vocabulary, name, "vocab_size", f"1 … {vocabulary}", vocab_size)
    return torch.empty_like(positions)


def _fake_mark_prompt(tokens: torch.Tensor, start: torch.Tensor, slot: torch.Tensor, history: torch.Tensor) -> None:
    name = "mark_prompt"
    check_tensor(name, "tokens", tokens, shape=("T",), dtype=torch.int64)
    check_tensor(name, "start", start, shape=(1,), dtype=torch.int64, device=tokens.device)
    check_tensor(name, "slot", slot, shape=(1,), dtype=torch.int64, device=tokens.device)
    check_tensor(name, "history", history, shape=("S", "V"), dtype=torch.int32, device=tokens.device)


OPERATORS = (
    Operator(
        schema="sample_tokens(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
        "Tensor presence_penalty, Tensor frequency_penalty, Tensor repetition_penalty, Tensor seeds, "
        "Tensor positions, Tensor slots, Tensor(a!) history, int vocab_size) -> Tensor",
        reference=_packed(checked(_fake_sample_tokens, reference.sample_tokens)),
        fake=_packed(_fake_sample_tokens),
        cuda=_packed(checked(_fake_sample_tokens, launch.sample_tokens)),
    ),
    Operator(
        schema="mark_prompt(Tensor tokens, Tensor start, Tensor slot, Tensor(a!) history) -> ()",
        reference=checked(_fake_mark_prompt, reference.mark_prompt),
        fake=_fake_mark_prompt,
        cuda=checked(_fake_mark_prompt, launch.mark_prompt),
    ),
)


def sample_tokens(
    logits: torch.Tensor,
    rows: SamplingRows,
    *,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    history: torch.Tensor,
    vocab_size: int,
) -> torch.Tensor:
    """Choose a token for each row, int64 (B,), and count it in the row's slot of `history`.

    logits: (B, V) float32, bfloat16 or float16; NaN counts as -inf, a row without a finite logit gives 0.
    seeds, positions, slots: (B,) int64. The noise depends on (seed, position, token id) alone: a seed gives the same
        token whatever else is in the batch; every seed is one, 0 too. Slot -1 is padding: token 0, nothing counted.
    history: (S, V) int32, bit 0 set where a token occurs in the prompt, the bits above count it in the output.
    vocab_size: ids from here on are never chosen.

    Penalties come first, then top-k, top-p (of what top-k leaves) and min-p; equals of the last kept logit are kept.
    Raises ValueError on wrong shape, dtype, device or strides.
    """
    parameters = (getattr(rows, field.name) for field in fields(rows))
    result: torch.Tensor = torch.ops.cuda_kernels.sample_tokens(
        logits, *parameters, seeds, positions, slots, history, vocab_size
    )
    return result


def mark_prompt(tokens: torch.Tensor, *, start: torch.Tensor, slot: torch.Tensor, history: torch.Tensor) -> None:
    """Mark prompt tokens (T,) int64 in the slot's row of `history`; start = 0 clears it first, slot -1 does nothing.

    start, slot: (1,) int64. A token outside the vocabulary raises on the CPU and is passed over on CUDA.
    """
    torch.ops.cuda_kernels.mark_prompt(tokens, start, slot, history)
