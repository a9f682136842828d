"""Instructions as calls whose arguments lie ready, and the loop that makes them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from device_core.allocator import allocators
from device_core.device import Device
from device_core.errors import CaptureError, ProgramError
from device_core.runtime.backends import Region
from device_core.runtime.values import LinkedValues
from device_core.schema import types as t

MAX_STEPS = 1_000_000
"""Instructions that one execution of a method with jumps may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What the calls of a method go to: its operators and regions, by index."""

    operators: Sequence[OpOverload]
    regions: Sequence[Region]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One instruction. A jump has no function; its condition is the argument and `jump` the place to go to.

    uncapturable: why it cannot be recorded into a CUDA graph, or nothing.
    """

    label: str
    function: Callable[..., object] | None
    args: list[Any]
    kwargs: dict[str, Any]
    device: str
    jump: int = 0
    uncapturable: str = ""


def link_calls(method: t.Method, values: LinkedValues, code: Code) -> list[Call]:
    """Return a call for each instruction."""
    calls = []
    for position, instruction in enumerate(method.instructions):
        name, function, indices = _target(method, instruction, code)
        args: list[Any] = [None] * len(indices)
        kwargs: dict[str, Any] = {}
        for i, index in enumerate(indices):
            values.place(args, i, index)
        if isinstance(instruction, t.KernelCall):
            for key, index in instruction.kwargs.items():
                values.place(kwargs, key, index)
        calls.append(
            Call(
                label=f"method {method.name!r}, instruction {position}: {name}",
                function=function,
                args=args,
                kwargs=kwargs,
                device=device_of(method, instruction),
                jump=instruction.target if isinstance(instruction, t.JumpFalse) else 0,
                uncapturable=_uncapturable(method, instruction, code),
            )
        )
    return calls


def device_of(method: t.Method, instruction: t.Instruction) -> str:
    """Return the device that an instruction runs on: that of its tensors which is not the host, if there is one."""
    match instruction:
        case t.DelegateCall(delegate=delegate):
            return method.delegates[delegate].device
        case t.KernelCall(args=args, kwargs=kwargs):
            indices = [*args, *kwargs.values()]
        case t.Move(source=source, target=target):
            indices = [source, target]
        case _:
            return "cpu"
    groups = [value.items if isinstance(value := method.values[i], t.ListValue) else (i,) for i in indices]
    values = [method.values[i] for group in groups for i in group]
    return max((value.device for value in values if isinstance(value, t.TensorValue)), key=Device.parse, default="cpu")


class Instructions:
    """The calls of a method, grouped by the device that must be current while they are made."""

    def __init__(self, method: str, calls: Sequence[Call]) -> None:
        self.calls = list(calls)
        self._method = method
        self._jumps = any(call.function is None for call in calls)
        self._runs = [] if self._jumps else _runs(calls)

    @property
    def devices(self) -> frozenset[Device]:
        """Return the devices that instructions run on."""
        return frozenset(Device.parse(call.device) for call in self.calls)

    def check_capturable(self) -> None:
        """Raise CaptureError, which lists every instruction that cannot be recorded into a CUDA graph."""
        problems = [f"{call.label}: {call.uncapturable}" for call in self.calls if call.uncapturable]
        if problems:
            more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
            raise CaptureError("; ".join(problems[:5]) + more)

    def run(self) -> None:
        """Make the calls. An error that one raises goes on with a note that says which instruction it was."""
        if self._jumps:
            self._step()
        for device, calls in self._runs:
            if device is None:
                _run_all(calls)
            else:
                with _guard(device):
                    _run_all(calls)

    def _step(self) -> None:
        position = 0
        for _ in range(MAX_STEPS):
            if position == len(self.calls):
                return
            call = self.calls[position]
            position += 1
            if call.function is None:
                condition = call.args[0]
                holds = bool(condition.all()) if isinstance(condition, torch.Tensor) else condition
                position = position if holds else call.jump
            else:
                with _guard(Device.parse(call.device)):
                    _run_all([call])
        raise ProgramError(f"method {self._method!r}", [f"it did not end within {MAX_STEPS:,} instructions"])


def _uncapturable(method: t.Method, instruction: t.Instruction, code: Code) -> str:
    match instruction:
        case t.Free():
            return ""
        case t.JumpFalse():
            return "depends on data"
        case t.DelegateCall(delegate=delegate):
            backend = method.delegates[delegate].backend
            return "" if code.regions[delegate].capturable else f"regions of backend {backend!r} cannot be captured"
        case t.KernelCall(operator=operator) if method.operators[operator].startswith("device_copy::"):
            return "copies between host and device"
    return "runs on the host" if device_of(method, instruction) == "cpu" else ""


def _target(
    method: t.Method, instruction: t.Instruction, code: Code
) -> tuple[str, Callable[..., object] | None, Sequence[int]]:
    """Return name, function and positional arguments of an instruction."""
    match instruction:
        case t.KernelCall(operator=operator, args=args):
            return method.operators[operator], code.operators[operator], args
        case t.DelegateCall(delegate=delegate, args=args, outputs=outputs):
            run = partial(_run_region, code.regions[delegate], len(args))
            return f"region {method.delegates[delegate].region}", run, (*args, *outputs)
        case t.Move(source=source, target=target):
            return "move", torch.ops.aten.copy_.default, (target, source)
        case t.JumpFalse(condition=condition):
            return "jump", None, (condition,)
        case t.Free():
            return "free", _nothing, ()


def _runs(calls: Sequence[Call]) -> list[tuple[Device | None, list[Call]]]:
    """Return calls in runs under one current device (None: only the host); host calls join the run before them."""
    runs: list[tuple[Device | None, list[Call]]] = []
    for call in calls:
        if call.function is _nothing:
            continue
        device = None if call.device == "cpu" else Device.parse(call.device)
        if runs and device in (None, runs[-1][0]):
            runs[-1][1].append(call)
        elif runs and runs[-1][0] is None:
            runs[-1] = (device, [*runs[-1][1], call])
        else:
            runs.append((device, [call]))
    return runs


def _run_all(calls: Sequence[Call]) -> None:
    call = None
    try:
        for call in calls:
            call.function(*call.args, **call.kwargs)  # type: ignore[misc]  # runs hold no jumps
    except Exception as error:
        error.add_note(f"in {call.label if call else 'no instruction'}")
        raise


def _guard(device: Device) -> AbstractContextManager[object]:
    return allocators().require(device).guard(device.index)


def _run_region(region: Region, input_count: int, *arguments: Any) -> None:
    region.execute(arguments[:input_count], arguments[input_count:])


def _nothing() -> None:
    """Free: planned memory is reused by plan; what the caller passed is let go of when the call ends."""
