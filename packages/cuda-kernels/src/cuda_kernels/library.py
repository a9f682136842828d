"""The `cuda_kernels` operator namespace: one declaration gives an operator its functional, out and fake forms."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

NAMESPACE = "cuda_kernels"

_SCHEMA = re.compile(r"^(?P<name>\w+)\((?P<arguments>.*)\) -> (?P<returns>.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Declare one operator.

    schema: functional form, `name(arguments) -> Tensor` or `-> (Tensor values, Tensor indices)`; results of a multiple
        return are named, since the names become the keyword arguments of the out form. `-> ()` returns nothing.
    reference: plain torch, takes the schema's arguments and returns new tensors; the CPU implementation.
    cuda: takes the schema's arguments and then the outputs, which it fills; launches only, no synchronization.
        None where only the reference exists yet: CUDA tensors then run the reference, on their device.
    fake: takes the schema's arguments, checks them, and returns outputs of the right shape, dtype and device,
        uninitialized (`x.new_empty`); it serves tracing and allocates the outputs of the functional CUDA form.
    """

    schema: str
    reference: Callable[..., Any]
    fake: Callable[..., Any]
    cuda: Callable[..., None] | None = None

    @property
    def name(self) -> str:
        """Return the operator's name without namespace."""
        return self._parts()["name"]

    @property
    def out_names(self) -> tuple[str, ...]:
        """Return the keyword names of the out form: `out`, or the names of a multiple return."""
        returns = self._parts()["returns"]
        if returns == "()":
            return ()
        if returns == "Tensor":
            return ("out",)
        return tuple(item.split()[1] for item in returns.strip("()").split(","))

    @property
    def out_schema(self) -> str:
        """Return the schema of the `.out` overload; each output is a mutated keyword argument."""
        parts, names = self._parts(), self.out_names
        # Letters from the end of the alphabet: the functional form may use the first ones for mutated state.
        sets = [chr(ord("z") - i) for i in range(len(names))]
        keywords = ", ".join(f"Tensor({s}!) {n}" for s, n in zip(sets, names, strict=True))
        star = "" if "*," in parts["arguments"] else "*, "
        # Returns nothing: torch functionalizes no custom operator whose result aliases an argument.
        return f"{parts['name']}.out({parts['arguments']}, {star}{keywords}) -> ()"

    def _parts(self) -> dict[str, str]:
        match = _SCHEMA.match(self.schema)
        if match is None:
            raise ValueError(f"operator schema {self.schema!r}: expected 'name(arguments) -> returns'")
        return match.groupdict()


def define(library: torch.library.Library, operator: Operator) -> None:
    """Register both forms of `operator` in `library` for CPU, CUDA and tracing."""
    library.define(operator.schema)
    library.impl(operator.name, operator.reference, "CPU")
    library.impl(operator.name, _functional_cuda(operator), "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{operator.name}", operator.fake, lib=library)
    if operator.out_names:
        overload = f"{operator.name}.out"
        library.define(operator.out_schema)
        library.impl(overload, _out_from_result(operator, operator.reference), "CPU")
        library.impl(overload, _out_cuda(operator), "CUDA")
        torch.library.register_fake(f"{NAMESPACE}::{overload}", _fake_out(operator), lib=library)


def _as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    if result is None:
        return ()
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _single(results: tuple[torch.Tensor, ...]) -> Any:
    return None if not results else results[0] if len(results) == 1 else results


def _functional_cuda(operator: Operator) -> Callable[..., Any]:
    launch = operator.cuda
    if launch is None:
        return operator.reference

    names = operator.out_names

    def run(*args: Any, **kwargs: Any) -> Any:
        outputs = _as_tuple(operator.fake(*args, **kwargs))
        launch(*args, **kwargs, **dict(zip(names, outputs, strict=True)))
        return _single(outputs)

    return run


def _out_cuda(operator: Operator) -> Callable[..., None]:
    launch = operator.cuda
    if launch is None:
        return _out_from_result(operator, operator.reference)

    return launch


def _out_from_result(operator: Operator, function: Callable[..., Any]) -> Callable[..., None]:
    names = operator.out_names

    def run(*args: Any, **kwargs: Any) -> None:
        outputs = tuple(kwargs.pop(name) for name in names)
        for name, output, result in zip(names, outputs, _as_tuple(function(*args, **kwargs)), strict=True):
            _check_output(operator, name, output, result)
            output.copy_(result)

    return run


def _fake_out(operator: Operator) -> Callable[..., None]:
    def run(*args: Any, **kwargs: Any) -> None:
        outputs = tuple(kwargs.pop(name) for name in operator.out_names)
        for name, output, result in zip(
            operator.out_names, outputs, _as_tuple(operator.fake(*args, **kwargs)), strict=True
        ):
            _check_output(operator, name, output, result)

    return run


def _check_output(operator: Operator, name: str, output: torch.Tensor, result: torch.Tensor) -> None:
    if output.dtype != result.dtype or output.shape != result.shape:
        raise ValueError(
            f"{operator.name}: {name}: expected {result.dtype} {tuple(result.shape)}, "
            f"got {output.dtype} {tuple(output.shape)}"
        )
