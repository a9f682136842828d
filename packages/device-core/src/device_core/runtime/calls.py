"""Instructions as calls whose arguments lie ready, and the loop that makes them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from device_core.allocator import allocators
from device_core.device import HOST, Device
from device_core.errors import CaptureError, ProgramError
from device_core.runtime.backends import Region
from device_core.runtime.values import LinkedValues
from device_core.schema import types as t

MAX_STEPS = 1_000_000
"""Instructions that one execution of a method with jumps may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """What is known of an instruction before sizes are.

    function: what is called. args, kwargs: values by index. device: where it runs.
    jump: the place to go to where the function says no; None for what is no jump.
    uncapturable: why it cannot be part of a CUDA graph, or "".
    """

    label: str
    function: Callable[..., object]
    args: Sequence[int]
    kwargs: Mapping[str, int]
    device: Device
    jump: int | None
    uncapturable: str


class Call(NamedTuple):
    """A call with its arguments."""

    function: Callable[..., object]
    args: list[Any]
    kwargs: dict[str, Any]


def call_sites(
    method: t.Method, operators: Mapping[str, OpOverload], regions: Sequence[Region]
) -> tuple[CallSite, ...]:
    """Return a site for each instruction; `regions` are the method's, by index."""
    sites = []
    for position, instruction in enumerate(method.instructions):
        name, function, args = _target(method, instruction, operators, regions)
        device = device_of(method, instruction)
        sites.append(
            CallSite(
                label=f"method {method.name!r}, instruction {position}: {name}",
                function=function,
                args=args,
                kwargs=instruction.kwargs if isinstance(instruction, t.KernelCall) else {},
                device=device,
                jump=instruction.target if isinstance(instruction, t.JumpFalse) else None,
                uncapturable=_uncapturable(method, instruction, device, regions),
            )
        )
    return tuple(sites)


def device_of(method: t.Method, instruction: t.Instruction) -> Device:
    """Return the device that an instruction runs on: that of its tensors which is not the host, if there is one."""
    match instruction:
        case t.DelegateCall(delegate=delegate):
            return Device.parse(method.delegates[delegate].device)
        case t.KernelCall(args=args, kwargs=kwargs):
            indices = [*args, *kwargs.values()]
        case t.Move(source=source, target=target):
            indices = [source, target]
        case _:
            indices = []
    groups = [value.items if isinstance(value := method.values[i], t.ListValue) else (i,) for i in indices]
    values = [method.values[i] for group in groups for i in group]
    devices = {value.device for value in values if isinstance(value, t.TensorValue)}
    return max(map(Device.parse, devices or {"cpu"}))


class Instructions:
    """The calls of a method, grouped by the device that must be current while they are made."""

    def __init__(self, method: str, sites: Sequence[CallSite], values: LinkedValues) -> None:
        self._method = method
        self._sites = sites
        self._jumps = any(site.jump is not None for site in sites)
        self.calls = [_call(site, values) for site in sites]
        self._runs = [] if self._jumps else _runs(sites, self.calls)

    def check_capturable(self) -> None:
        """Raise CaptureError, which lists every instruction that cannot be recorded into a CUDA graph."""
        problems = [f"{site.label}: {site.uncapturable}" for site in self._sites if site.uncapturable]
        if problems:
            more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
            raise CaptureError("; ".join(problems[:5]) + more)

    def run(self) -> None:
        """Make the calls. An error that one raises goes on with a note that says which instruction it was."""
        if self._jumps:
            self._step()
        for device, calls, sites in self._runs:
            if device.is_host:
                _run_all(calls, sites)
            else:
                with _guard(device):
                    _run_all(calls, sites)

    def _step(self) -> None:
        position = 0
        for _ in range(MAX_STEPS):
            if position == len(self.calls):
                return
            site, call = self._sites[position], self.calls[position]
            position += 1
            if site.jump is None:
                with _guard(site.device):
                    _run_all([call], [site])
            elif not call.function(*call.args):
                position = site.jump
        raise ProgramError(f"method {self._method!r}", [f"it did not end within {MAX_STEPS:,} instructions"])


def _call(site: CallSite, values: LinkedValues) -> Call:
    args: list[Any] = [None] * len(site.args)
    kwargs: dict[str, Any] = {}
    for i, index in enumerate(site.args):
        values.place(args, i, index)
    for name, index in site.kwargs.items():
        values.place(kwargs, name, index)
    return Call(site.function, args, kwargs)


def _target(
    method: t.Method, instruction: t.Instruction, operators: Mapping[str, OpOverload], regions: Sequence[Region]
) -> tuple[str, Callable[..., object], Sequence[int]]:
    """Return name, function and positional arguments of an instruction."""
    match instruction:
        case t.KernelCall(operator=operator, args=args):
            return method.operators[operator], operators[method.operators[operator]], args
        case t.DelegateCall(delegate=delegate, args=args, outputs=outputs):
            run = partial(_run_region, regions[delegate], len(args))
            return f"region {method.delegates[delegate].region}", run, (*args, *outputs)
        case t.Move(source=source, target=target):
            return "move", torch.ops.aten.copy_.default, (target, source)
        case t.JumpFalse(condition=condition):
            return "jump", _holds, (condition,)


def _uncapturable(method: t.Method, instruction: t.Instruction, device: Device, regions: Sequence[Region]) -> str:
    match instruction:
        case t.JumpFalse():
            return "depends on data"
        case t.DelegateCall(delegate=delegate):
            backend = method.delegates[delegate].backend
            return "" if regions[delegate].capturable else f"regions of backend {backend!r} cannot be captured"
        case t.KernelCall(operator=operator) if method.operators[operator].startswith("device_copy::"):
            return "copies between host and device"
    return "runs on the host" if device.is_host else ""


def _runs(sites: Sequence[CallSite], calls: Sequence[Call]) -> list[tuple[Device, list[Call], list[CallSite]]]:
    """Return the calls in runs under one current device; calls on the host join a run beside them."""
    runs: list[tuple[Device, list[Call], list[CallSite]]] = []
    for site, call in zip(sites, calls, strict=True):
        if runs and (site.device.is_host or runs[-1][0] in (site.device, HOST)):
            device, members, places = runs[-1]
            members.append(call)
            places.append(site)
            runs[-1] = (max(device, site.device), members, places)
        else:
            runs.append((site.device, [call], [site]))
    return runs


def _run_all(calls: Sequence[Call], sites: Sequence[CallSite]) -> None:
    position = 0
    try:
        for position, (function, args, kwargs) in enumerate(calls):  # noqa: B007  # read where a call fails
            function(*args, **kwargs)
    except Exception as error:
        error.add_note(f"in {sites[position].label}")
        raise


def _guard(device: Device) -> AbstractContextManager[object]:
    return allocators().require(device).guard(device.index)


def _run_region(region: Region, input_count: int, *arguments: Any) -> None:
    region.execute(arguments[:input_count], arguments[input_count:])


def _holds(condition: torch.Tensor | bool) -> bool:
    return bool(condition.all()) if isinstance(condition, torch.Tensor) else condition
