"""A linked method: its arguments are checked, put into the calls, and its outputs returned."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from device_core.errors import InputError, ProgramError
from device_core.runtime.binding import Argument, ScalarCheck, TensorCheck, addresses, intersect
from device_core.runtime.calls import CallSite, Instructions
from device_core.runtime.values import LinkedValues, Storages
from device_core.schema import types as t

Passed = dict[int, torch.Tensor]
"""The tensors that the caller passes, by value index."""


class LinkedMethod:
    """A method over its memory, for given symbols.

    Raises ProgramError where a tensor of these sizes does not lie within its storage.
    """

    def __init__(
        self, method: t.Method, symbols: Mapping[str, int], storages: Storages, sites: Sequence[CallSite]
    ) -> None:
        self._method = method
        values = LinkedValues(method, symbols, storages)
        try:
            self.instructions = Instructions(method.name, sites, values)
            self._results = [_result(method, i, values) for i in method.outputs]
        except ValueError as error:
            raise ProgramError(f"method {method.name!r} at {dict(symbols)}", [str(error)]) from error
        self._written = [
            (f"method {method.name!r}: value {i} ({method.values[i].name})", tensor, tensor.shape)
            for i, tensor in values.tensors()
        ]
        self._checked = False
        self._checks = _input_checks(method, symbols)
        self._output_checks = _output_checks(method, symbols)
        self._views = list(values.bound.values())
        self._planned_inputs = [
            (i, values.get(i))
            for i in method.inputs
            if isinstance(value := method.values[i], t.TensorValue) and isinstance(value.storage, t.Planned)
        ]
        self._own_memory = {buffer.memory.untyped_storage().data_ptr() for buffer in storages.planned} - {0}

    def execute(self, inputs: Sequence[Argument], outputs: Sequence[torch.Tensor | None] = ()) -> tuple[Any, ...]:
        """Check the arguments, run the instructions and return the outputs.

        outputs: memory for those outputs that the caller supplies, by position; None for the others. It overlaps
        neither the inputs nor memory of other outputs.
        """
        passed = self._accept(inputs, outputs)
        try:
            for view in self._views:
                view.put(passed[view.base])
            with torch.inference_mode():
                for index, target in self._planned_inputs:
                    target.copy_(passed[index])
                self.instructions.run()
            if not self._checked:
                self._check_outputs()
            return tuple([result(passed) for result in self._results])
        finally:
            for view in self._views:
                view.clear()

    def _check_outputs(self) -> None:
        """Raise ProgramError where an operator resized what it was given to write to, as torch's own may."""
        for where, tensor, sizes in self._written:
            if tensor.shape != sizes:
                found = tuple(tensor.shape)
                raise ProgramError(where, [f"planned with sizes {tuple(sizes)}, but its operator gives it {found}"])
        self._checked = True
        self._written.clear()

    def _accept(self, inputs: Sequence[Argument], outputs: Sequence[torch.Tensor | None]) -> Passed:
        passed: Passed = {}
        if len(inputs) != len(self._checks):
            raise InputError(f"{self._method.name}: expected {len(self._checks)} inputs, got {len(inputs)}")
        for (index, check), given in zip(self._checks, inputs, strict=True):
            tensor = check(given)
            if tensor is not None:
                if self._is_own(tensor):
                    where = f"{self._method.name}: input {self._method.values[index].name}"
                    raise InputError(f"{where}: it lies in memory that this very call writes; pass a clone")
                passed[index] = tensor
        for position, index, output_check in self._output_checks:
            passed[index] = output_check(outputs[position] if position < len(outputs) else None)
        if self._output_checks:
            self._check_apart(passed)
        return passed

    def _is_own(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._own_memory

    def _check_apart(self, passed: Passed) -> None:
        """Raise InputError where memory for an output overlaps an input, another output or planned memory."""
        taken = {index: addresses(tensor) for index, tensor in passed.items()}
        for position, index, _ in self._output_checks:
            others = [self._named(other) for other in taken if other != index and intersect(taken[index], taken[other])]
            if taken[index] and self._is_own(passed[index]):
                others.append("planned memory of the method")
            if others:
                where = f"{self._method.name}: memory for output {position} ({self._method.values[index].name})"
                raise InputError(f"{where}: expected memory of its own, got some that overlaps {', '.join(others)}")

    def _named(self, index: int) -> str:
        """Return how messages call an input or output."""
        kind = "input" if index in self._method.inputs else "output"
        position = (self._method.inputs if kind == "input" else self._method.outputs).index(index)
        return f"{kind} {position} ({self._method.values[index].name})"


def _result(method: t.Method, index: int, values: LinkedValues) -> Callable[[Passed], Argument]:
    value = method.values[index]
    if isinstance(value, t.TensorValue) and isinstance(value.storage, t.Bound):
        view = values.bound_view(index)
        return lambda passed: view.of(passed[view.base])
    found = values.get(index)
    if isinstance(value, t.TensorValue) and isinstance(value.storage, t.Constant):
        # A caller may write to what it is given, but not to a constant.
        return lambda _: found.clone()
    return lambda _: found


def _input_checks(
    method: t.Method, symbols: Mapping[str, int]
) -> list[tuple[int, Callable[[object], torch.Tensor | None]]]:
    checks: list[tuple[int, Callable[[object], torch.Tensor | None]]] = []
    for position, index in enumerate(method.inputs):
        value = method.values[index]
        where = f"{method.name}: input {position} ({value.name})"
        match value:
            case t.TensorValue():
                checks.append((index, TensorCheck(where, value, symbols)))
            case t.ScalarValue() | t.NonFiniteValue():
                checks.append((index, ScalarCheck(where, value)))
            case _:
                # Symbols were read from it; `Signature` has checked it.
                checks.append((index, _unchecked))
    return checks


def _unchecked(_: object) -> None:
    return None


def _output_checks(method: t.Method, symbols: Mapping[str, int]) -> list[tuple[int, int, TensorCheck]]:
    """Return position, value and check of each output whose memory the caller supplies."""
    found = []
    for position, index in enumerate(method.outputs):
        value = method.values[index]
        own = isinstance(value, t.TensorValue) and value.storage == t.Bound(value=index)
        if isinstance(value, t.TensorValue) and own and index not in method.inputs:
            where = f"{method.name}: memory for output {position} ({value.name})"
            found.append((position, index, TensorCheck(where, value, symbols)))
    return found
