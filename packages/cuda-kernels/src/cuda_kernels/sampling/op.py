"""Operators of the sampling family: declarations and public functions."""

from dataclasses import dataclass, fields
from typing import Any

import torch

from cuda_kernels.checks import FLOATS, check, check_tensor, checked
from cuda_kernels.library import Operator
from cuda_kernels.sampling import history, reference, sample
from cuda_kernels.sampling.cases import COMPILE_CASES

__all__ = ["COMPILE_CASES", "OPERATORS", "SamplingRows", "mark_prompt", "sample_tokens"]


def _fake_sample_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    presence_penalty: torch.Tensor,
    frequency_penalty: torch.Tensor,
    repetition_penalty: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    history: torch.Tensor,
    vocab_size: int,
) -> torch.Tensor:
    name, device = "sample_tokens", logits.device
    check_tensor(name, "logits", logits, shape=("B", "V"), dtype=FLOATS)
    rows, vocabulary = logits.shape
    floats = {
        "temperature": temperature,
        "top_p": top_p,
        "min_p": min_p,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "repetition_penalty": repetition_penalty,
    }
    for argument, tensor in floats.items():
        check_tensor(name, argument, tensor, shape=(rows,), dtype=torch.float32, device=device)
    for argument, tensor in {"top_k": top_k, "seeds": seeds, "positions": positions, "slots": slots}.items():
        check_tensor(name, argument, tensor, shape=(rows,), dtype=torch.int64, device=device)
    check_tensor(name, "history", history, shape=("S", vocabulary), dtype=torch.int32, device=device)
    check(1 <= vocab_size <= vocabulary, name, "vocab_size", f"1 … {vocabulary}", vocab_size)
    return torch.empty_like(positions)


def _fake_mark_prompt(tokens: torch.Tensor, start: torch.Tensor, slot: torch.Tensor, history: torch.Tensor) -> None:
    name = "mark_prompt"
    check_tensor(name, "tokens", tokens, shape=("T",), dtype=torch.int64)
    check_tensor(name, "start", start, shape=(1,), dtype=torch.int64, device=tokens.device)
    check_tensor(name, "slot", slot, shape=(1,), dtype=torch.int64, device=tokens.device)
    check_tensor(name, "history", history, shape=("S", "V"), dtype=torch.int32, device=tokens.device)


def _cuda_sample_tokens(*args: Any, out: torch.Tensor) -> None:
    _fake_sample_tokens(*args)
    sample.sample_tokens(*args, out=out)


def _cuda_mark_prompt(*args: torch.Tensor) -> None:
    _fake_mark_prompt(*args)
    history.mark_prompt(*args)


OPERATORS = (
    Operator(
        schema="sample_tokens(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
        "Tensor presence_penalty, Tensor frequency_penalty, Tensor repetition_penalty, Tensor seeds, "
        "Tensor positions, Tensor slots, Tensor(a!) history, int vocab_size) -> Tensor",
        reference=checked(_fake_sample_tokens, reference.sample_tokens),
        fake=_fake_sample_tokens,
        cuda=_cuda_sample_tokens,
    ),
    Operator(
        schema="mark_prompt(Tensor tokens, Tensor start, Tensor slot, Tensor(a!) history) -> ()",
        reference=checked(_fake_mark_prompt, reference.mark_prompt),
        fake=_fake_mark_prompt,
        cuda=_cuda_mark_prompt,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Sampling parameters of a batch, (B,) each on the device of the logits: float32, top_k int64.

    temperature 0 and top_k 1 are the exact argmax, the lower id on ties; top_k ≤ 0 or ≥ V, top_p ≥ 1, min_p ≤ 0 are
    off; penalties are off at 0, 0 and 1.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    presence_penalty: torch.Tensor
    frequency_penalty: torch.Tensor
    repetition_penalty: torch.Tensor


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
