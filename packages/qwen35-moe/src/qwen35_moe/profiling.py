"""Where the time of a decode step goes: kernels of its graph, by operator, beside the floor of each operator.

Kernels of a step overlap: one starts while the last still runs, loads its weights, and waits. What a kernel costs is
therefore the time from the end of the kernel before it to its own end; these times add up to the step.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from device_core.schema import types as t

from qwen35_moe.benchmark import device_bandwidth
from qwen35_moe.engine import Engine
from qwen35_moe.errors import EngineError
from qwen35_moe.sampling import SamplingParameters
from qwen35_moe.traffic import constant_traffic, state_traffic

# Substrings of the names of kernels and operators, and the operator that both count to; the first that fits does.
_OPERATOR_OF = (
    ("gated_delta", "gated_delta_net_decode"),
    ("attention", "attention_decode"),
    ("gate_up", "fused_moe"),
    ("down", "fused_moe"),
    ("_moe", "fused_moe"),
    ("matvec", "int4_linear"),
    ("int4_linear", "int4_linear"),
    ("route", "moe_router"),
    ("rms_norm", "rms_norm"),
    ("sample", "sample_tokens"),
    ("index", "embedding"),
    ("memcpy", "copies"),
)

_WARM_UPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorShare:
    """One operator's part of a step.

    calls: kernels a step. seconds, share: of the step. floor_s: its bytes over the bandwidth of the device's memory.
    kernels: (name, calls, seconds) of each of its kernels, a step.
    """

    operator: str
    calls: float
    seconds: float
    share: float
    floor_s: float
    kernels: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel that ran, with times in seconds."""

    name: str
    start: float
    end: float


def check_profilable(engine: Engine, *, context: int, steps: int = 32) -> None:
    """Raise EngineError where the engine is not on a GPU, or its context has no room for `steps` after a prompt."""
    if engine.device.is_host:
        raise EngineError("profile: the program runs on the host; kernels are profiled on a GPU")
    if (needed := max(context, 1) + _WARM_UPS + steps) > engine.info.context:
        raise EngineError(f"profile: {needed} tokens do not fit the context of {engine.info.context}")


def profile_decode(engine: Engine, *, context: int, steps: int = 32) -> tuple[OperatorShare, ...]:
    """Profile `steps` decode steps after a prompt of `context` tokens; the largest share comes first.

    Raises EngineError as `check_profilable` does.
    """
    check_profilable(engine, context=context, steps=steps)
    prompt = [1] * max(context, 1)
    generation = engine.generate(
        prompt, SamplingParameters(temperature=0), max_new_tokens=_WARM_UPS + steps + 1, stop_ids=()
    )
    for _ in range(_WARM_UPS):
        next(generation)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            next(generation)
        torch.cuda.synchronize()
    kernels = sorted(_kernels(profile.events()), key=lambda kernel: kernel.end)
    return shares_of(kernels, steps, _floors(engine, context))


def _kernels(events: Iterable[Any]) -> Iterable[Kernel]:
    for event in events:
        if event.device_type.name == "CUDA":
            yield Kernel(name=event.name, start=event.time_range.start * 1e-6, end=event.time_range.end * 1e-6)


def shares_of(kernels: list[Kernel], steps: int, floors: dict[str, float]) -> tuple[OperatorShare, ...]:
    """Return the part of each operator in `steps` steps, of kernels in the order of their ends."""
    seconds: dict[str, dict[str, list[float]]] = {}
    last = kernels[0].start if kernels else 0.0
    for kernel in kernels:
        costs = seconds.setdefault(_operator_of(kernel.name), {}).setdefault(kernel.name, [])
        costs.append(kernel.end - last)
        last = kernel.end
    total = sum(sum(costs) for by_kernel in seconds.values() for costs in by_kernel.values())
    shares = [
        OperatorShare(
            operator=operator,
            calls=sum(map(len, by_kernel.values())) / steps,
            seconds=sum(map(sum, by_kernel.values())) / steps,
            share=sum(map(sum, by_kernel.values())) / total,
            floor_s=floors.get(operator, 0.0),
            kernels=tuple((name, len(costs) / steps, sum(costs) / steps) for name, costs in by_kernel.items()),
        )
        for operator, by_kernel in seconds.items()
    ]
    return tuple(sorted(shares, key=lambda share: -share.seconds))


def _operator_of(kernel: str) -> str:
    return next((operator for part, operator in _OPERATOR_OF if part in kernel.lower()), "other")


def _floors(engine: Engine, context: int) -> dict[str, float]:
    """Return, by operator, the bytes that its calls in `decode` must move over the bandwidth."""
    program = engine.module.program
    method = next(method for method in program.methods if method.name == "decode")
    bandwidth = device_bandwidth(engine)
    assert bandwidth is not None
    floors: dict[str, float] = {}
    for call in method.instructions:
        if isinstance(call, t.KernelCall):
            name = method.operators[call.operator].removeprefix("cuda_kernels::")
            operator = _operator_of(name)
            values = (method.values[index] for index in (*call.args, *call.kwargs.values()))
            storages = [value.storage for value in values if isinstance(value, t.TensorValue)]
            nbytes = sum(constant_traffic(program, s.name) for s in storages if isinstance(s, t.Constant))
            nbytes += sum(state_traffic(program, s.name, context) for s in storages if isinstance(s, t.State))
            floors[operator] = floors.get(operator, 0.0) + nbytes / bandwidth
    return floors
