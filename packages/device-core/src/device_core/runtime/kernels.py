"""Operators by name: finding them in torch, and what their schemas say of a call."""

from collections.abc import Iterator, Sequence

import torch
from torch._ops import OpOverload

from device_core.errors import MissingOperatorError
from device_core.schema import types as t


def find_operator(name: str) -> OpOverload | None:
    """Return the overload called `namespace::name.overload` (`.default` may be left out), or None."""
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), operator)
        found = getattr(packet, overload or "default")
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, OpOverload) else None


def find_operators(methods: Sequence[t.Method], where: object) -> dict[str, OpOverload]:
    """Return every operator of the methods.

    Raises MissingOperatorError, which lists all that torch does not have and all calls that do not fit their schema.
    """
    names = dict.fromkeys(name for method in methods for name in method.operators)
    found = {name: find_operator(name) for name in names}
    missing = [
        f"operator {name} is not registered (method {', '.join(m.name for m in methods if name in m.operators)})"
        for name, operator in found.items()
        if operator is None
    ]
    if missing:
        raise MissingOperatorError(where, missing)
    operators = {name: operator for name, operator in found.items() if operator is not None}
    problems = [problem for method in methods for problem in _misfits(method, operators)]
    if problems:
        raise MissingOperatorError(where, problems)
    return operators


def _misfits(method: t.Method, operators: dict[str, OpOverload]) -> Iterator[str]:
    for i, instruction in enumerate(method.instructions):
        if isinstance(instruction, t.KernelCall):
            name = method.operators[instruction.operator]
            where = f"method {method.name!r}: instruction {i}: {name}"
            for problem in _call_problems(method, instruction, operators[name]):
                yield f"{where}: {problem}"


def _call_problems(method: t.Method, call: t.KernelCall, operator: OpOverload) -> Iterator[str]:
    parameters = operator._schema.arguments
    positional = [p for p in parameters if not p.kwarg_only]
    if len(call.args) > len(positional):
        yield f"expected at most {len(positional)} positional arguments, got {len(call.args)}"
        return
    given = {p.name: value for p, value in zip(positional, call.args, strict=False)}
    names = {p.name for p in parameters}
    for name, value in call.kwargs.items():
        if name not in names or name in given:
            yield f"unexpected argument {name!r}"
        given[name] = value
    for parameter in parameters:
        if parameter.name not in given and not parameter.has_default_value():
            yield f"argument {parameter.name!r} is missing"
        elif parameter.name in given and parameter.alias_info is not None and parameter.alias_info.is_write:
            yield from _write_problems(method, call, parameter.name, given[parameter.name])


def _write_problems(method: t.Method, call: t.KernelCall, name: str, index: int) -> Iterator[str]:
    value = method.values[index]
    for i in value.items if isinstance(value, t.ListValue) else (index,):
        target = method.values[i]
        if isinstance(target, t.TensorValue) and isinstance(target.storage, t.Constant):
            yield f"writes {name!r} into constant {target.storage.name!r}"
        elif isinstance(target, t.TensorValue) and i not in call.outputs:
            yield f"writes {name!r}, value {i}, which is not among its outputs"
