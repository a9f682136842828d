"""Operators of the sampling family: declarations and public functions."""

from typing import Any

import torch

from cuda_kernels.checks import check, check_tensor, checked
from cuda_kernels.library import Operator
from cuda_kernels.sampling import history, reference, sample
from cuda_kernels.sampling.cases import COMPILE_CASES

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


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


__all__ = ["COMPILE_CASES", "OPERATORS"]

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
