"""Measuring an engine: prompts (`pp`), output (`tg`), time to the first token, memory, share of the bandwidth."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch

from qwen35_moe.engine import Engine
from qwen35_moe.errors import PromptError
from qwen35_moe.sampling import SamplingParameters
from qwen35_moe.traffic import decode_traffic

_WARM_UPS = 2  # the second run of a prompt's length is captured as a graph, the third replays it
_GREEDY = SamplingParameters(temperature=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row: `kind` is `pp` (prompt of `tokens`) or `tg` (output of `tokens` after `context`).

    tokens_per_s: the median, smallest and largest of the repeats. first_token_s: median, of `pp` only.
    nbytes_per_token, bandwidth_share: of `tg`; the share of what the device's memory can move, None where unknown.
    """

    kind: str
    tokens: int
    context: int
    tokens_per_s: float
    slowest: float
    fastest: float
    first_token_s: float | None = None
    nbytes_per_token: int | None = None
    bandwidth_share: float | None = None

    @property
    def name(self) -> str:
        """Return the name that tables of this field use, such as `pp1341` or `tg128@1341`."""
        return f"{self.kind}{self.tokens}" + (f"@{self.context}" if self.kind == "tg" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was measured, on what, with which versions."""

    device: str
    versions: dict[str, str]
    quant: str
    peak_nbytes: int | None
    measurements: tuple[Measurement, ...]

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        rows = [{"name": row.name, **asdict(row)} for row in self.measurements]
        return {**asdict(self), "measurements": rows}


def measure(
    engine: Engine,
    *,
    prompts: Sequence[int] = (512, 1341),
    new_tokens: int = 128,
    contexts: Sequence[int] = (0, 1341),
    repeats: int = 5,
    on_row: Callable[[Measurement], None] | None = None,
) -> Report:
    """Measure prompts of each length, and outputs after each context (0: after one token), with random token ids.

    Raises PromptError, before anything runs, where a length or count is below 1 or does not fit the engine's context.
    """
    counts = {"prompts": min(prompts, default=1), "new_tokens": new_tokens, "repeats": repeats}
    if wrong := [f"{name}: expected at least 1, got {count}" for name, count in counts.items() if count < 1]:
        raise PromptError(f"bench: {wrong[0]}")
    longest = max((*prompts, *(max(context, 1) + new_tokens for context in contexts)), default=0)
    if longest > engine.info.context:
        raise PromptError(f"bench: {longest} tokens do not fit the context of {engine.info.context}")
    rows = []
    for length in prompts:
        rows.append(measure_prompt(engine, length, repeats=repeats))
        (on_row or _ignore)(rows[-1])
    for context in contexts:
        rows.append(measure_output(engine, max(context, 1), new_tokens, repeats=repeats))
        (on_row or _ignore)(rows[-1])
    on_gpu = not engine.device.is_host
    return Report(
        device=torch.cuda.get_device_name(engine.device.index) if on_gpu else "cpu",
        versions={name: version(name) for name in ("qwen35-moe", "cuda-kernels", "device-core", "torch", "triton")},
        quant=engine.info.quant,
        peak_nbytes=torch.cuda.max_memory_reserved(engine.device.index) if on_gpu else None,
        measurements=tuple(rows),
    )


def measure_prompt(engine: Engine, length: int, *, repeats: int) -> Measurement:
    """Measure a prompt of `length` up to its first token, which is read."""
    prompt = _random_prompt(engine, length)
    seconds = []
    for repeat in range(_WARM_UPS + repeats):
        begin = time.perf_counter()
        next(engine.generate(prompt, _GREEDY, max_new_tokens=1))
        if repeat >= _WARM_UPS:
            seconds.append(time.perf_counter() - begin)
    rates = [length / s for s in seconds]
    return Measurement(
        kind="pp",
        tokens=length,
        context=0,
        tokens_per_s=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        first_token_s=statistics.median(seconds),
    )


def measure_output(engine: Engine, context: int, tokens: int, *, repeats: int) -> Measurement:
    """Measure `tokens` tokens after the first one that follows a prompt of `context`."""
    prompt = _random_prompt(engine, context)
    rates = []
    for _ in range(1 + repeats):
        generation = engine.generate(prompt, _GREEDY, max_new_tokens=tokens + 1, stop_ids=())
        next(generation)
        begin = time.perf_counter()
        count = sum(1 for _ in generation)
        rates.append(count / (time.perf_counter() - begin))
    rate = statistics.median(rates[1:])
    nbytes = decode_traffic(engine.module.program).at(context + tokens // 2)
    bandwidth = device_bandwidth(engine)
    return Measurement(
        kind="tg",
        tokens=tokens,
        context=context,
        tokens_per_s=rate,
        slowest=min(rates[1:]),
        fastest=max(rates[1:]),
        nbytes_per_token=nbytes,
        bandwidth_share=None if bandwidth is None else nbytes * rate / bandwidth,
    )


def device_bandwidth(engine: Engine) -> float | None:
    """Return the bytes a second that the device's memory moves by its clock and width; None for the host."""
    if engine.device.is_host:
        return None
    properties = torch.cuda.get_device_properties(engine.device.index)
    # Double data rate: two transfers a clock, which the driver gives in kHz.
    return 2.0 * properties.memory_clock_rate * 1e3 * properties.memory_bus_width / 8


def _random_prompt(engine: Engine, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    tokens: list[int] = torch.randint(0, engine.info.vocab_size, (length,), generator=generator).tolist()
    return tokens


def _ignore(row: Measurement) -> None:
    """Take no notice of a row."""
