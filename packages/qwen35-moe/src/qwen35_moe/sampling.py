"""The sampling parameters of one request, and their form as one row of the sampler's inputs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from qwen35_moe.errors import SamplingError

_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How the next token is chosen from the logits; applied in the order of the fields' description.

    repetition_penalty: > 0, divides positive and multiplies negative logits of tokens of prompt and output; 1 is off.
    presence_penalty, frequency_penalty: subtracted once, or once per occurrence, for tokens of the output; 0 is off.
    temperature: >= 0; 0 takes the largest logit, the lower id on ties.
    top_k: keep the k largest logits; 0 or -1 is off.
    top_p: keep the smallest set of tokens with at least this probability, 0 < top_p <= 1; 1 is off.
    min_p: keep tokens with at least this share of the largest probability, 0 <= min_p <= 1; 0 is off.
    seed: 0 <= seed < 2^63; the same seed gives the same tokens, whatever else runs beside.

    Raises SamplingError where a value is outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _require(_finite(self.temperature) and self.temperature >= 0, "temperature", ">= 0", self.temperature)
        _require(_whole(self.top_k) and self.top_k >= -1, "top_k", "an integer >= -1", self.top_k)
        _require(_finite(self.top_p) and 0 < self.top_p <= 1, "top_p", "0 < top_p <= 1", self.top_p)
        _require(_finite(self.min_p) and 0 <= self.min_p <= 1, "min_p", "0 <= min_p <= 1", self.min_p)
        _require(_finite(self.presence_penalty), "presence_penalty", "a finite number", self.presence_penalty)
        _require(_finite(self.frequency_penalty), "frequency_penalty", "a finite number", self.frequency_penalty)
        _require(
            _finite(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty", "> 0", self.repetition_penalty,
        )  # fmt: skip
        _require(_whole(self.seed) and 0 <= self.seed <= _MAX_SEED, "seed", "0 <= seed < 2^63", self.seed)

    @classmethod
    def from_generation_config(cls, document: Mapping[str, Any]) -> "SamplingParameters":
        """Return the defaults that a checkpoint's generation_config.json gives; `do_sample` false is temperature 0."""
        known = {field.name for field in fields(cls)} - {"seed"}
        values = {name: value for name, value in document.items() if name in known and value is not None}
        if document.get("do_sample") is False:
            values["temperature"] = 0.0
        return cls(**values)


# The sampler's inputs in the order of the method `sample`, after the logits.
COLUMNS: tuple[tuple[str, torch.dtype], ...] = (
    ("temperature", torch.float32),
    ("top_k", torch.int64),
    ("top_p", torch.float32),
    ("min_p", torch.float32),
    ("presence_penalty", torch.float32),
    ("frequency_penalty", torch.float32),
    ("repetition_penalty", torch.float32),
    ("seed", torch.int64),
)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(condition: bool, name: str, expected: str, given: object) -> None:
    if not condition:
        raise SamplingError(f"{name}: expected {expected}, got {given!r}")
