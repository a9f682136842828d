"""The sampling parameters of one request, and their form as one row of the sampler's inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from qwen35_moe.errors import SamplingError
from qwen35_moe.files import parse_object

_MAX_INTEGER = 2**63 - 1
# Logits times, over or less a number within these bounds are finite in float32.
_LARGEST, _SMALLEST = 1e30, 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How the next token is chosen from the logits; applied in the order of the fields' description.

    repetition_penalty: 1e-30 to 1e30, divides positive and multiplies negative logits of tokens of prompt and output;
    1 is off.
    presence_penalty, frequency_penalty: -1e30 to 1e30, subtracted once, or once per occurrence, for tokens of the
    output; 0 is off.
    temperature: 0 to 1e30; 0 takes the largest logit, the lower id on ties.
    top_k: keep the k largest logits; 0, -1 or more than there are is off; below 2^63.
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
        _require(_within(self.temperature, 0, _LARGEST), "temperature", "0 to 1e30", self.temperature)
        _require(_whole(self.top_k, -1), "top_k", "an integer from -1 to 2^63 - 1", self.top_k)
        _require(_within(self.top_p, 0, 1) and self.top_p > 0, "top_p", "0 < top_p <= 1", self.top_p)
        _require(_within(self.min_p, 0, 1), "min_p", "0 <= min_p <= 1", self.min_p)
        for name in ("presence_penalty", "frequency_penalty"):
            penalty = getattr(self, name)
            _require(_within(penalty, -_LARGEST, _LARGEST), name, "-1e30 to 1e30", penalty)
        penalty = self.repetition_penalty
        _require(_within(penalty, _SMALLEST, _LARGEST), "repetition_penalty", "1e-30 to 1e30", penalty)
        _require(_whole(self.seed, 0), "seed", "an integer from 0 to 2^63 - 1", self.seed)

    @classmethod
    def from_generation_config(
        cls, document: Mapping[str, Any], *, where: object = "generation_config.json"
    ) -> "SamplingParameters":
        """Return the defaults that a checkpoint's generation_config.json gives; `do_sample` false is temperature 0.

        Raises SamplingError, naming `where`, where a value is outside its range.
        """
        known = {field.name for field in fields(cls)} - {"seed"}
        values = {name: value for name, value in document.items() if name in known and value is not None}
        if document.get("do_sample") is False:
            values["temperature"] = 0.0
        try:
            return cls(**values)
        except SamplingError as error:
            raise SamplingError(f"{where}: {error}") from error


def read_defaults(folder: Path) -> SamplingParameters:
    """Return the defaults of a folder's generation_config.json; those of the class where there is none.

    Raises SamplingError where it is no JSON object, or a value in it is outside its range.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return SamplingParameters()
    document = parse_object(path.read_bytes(), SamplingError, where=path)
    return SamplingParameters.from_generation_config(document, where=path)


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


def _within(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MAX_INTEGER


def _require(condition: bool, name: str, expected: str, given: object) -> None:
    if not condition:
        raise SamplingError(f"{name}: expected {expected}, got {given!r}")
