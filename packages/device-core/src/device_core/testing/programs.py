"""Programs written by hand, for tests of the runtime."""

import math
import os
from collections.abc import Mapping, Sequence

import torch

from device_core.schema import types as t
from device_core.schema.codec import ProgramWriter
from device_core.schema.dims import Interval, upper_bound
from device_core.schema.dtypes import DTYPES, NAMES

Operand = int | float | bool | str | None | Sequence["Operand"]


class MethodBuilder:
    """Build one method value by value and call by call. Values are known by their index.

    Planned tensors lie one after another in one buffer for each (device, kind); nothing shares bytes.
    """

    def __init__(self, name: str, *, symbols: Mapping[str, tuple[int, int]] | None = None) -> None:
        self._name = name
        self._symbols = tuple(t.Symbol(name=n, min=low, max=high) for n, (low, high) in (symbols or {}).items())
        self._ranges = {s.name: Interval(s.min, s.max) for s in self._symbols}
        self._values: list[t.Value] = []
        self._inputs: list[int] = []
        self._buffers: dict[tuple[str, t.BufferKind], int] = {}
        self._operators: list[str] = []
        self._delegates: list[t.Delegate] = []
        self.instructions: list[t.Instruction] = []

    def input(self, name: str, dtype: str, sizes: Sequence[t.Dim], *, device: str = "cpu") -> int:
        """Add an input whose tensor the caller passes."""
        index = self._tensor(name, dtype, sizes, t.Bound(value=len(self._values)), device)
        self._inputs.append(index)
        return index

    def input_value(self, value: t.Value) -> int:
        """Add an input of any kind."""
        self._inputs.append(self.value(value))
        return self._inputs[-1]

    def supplied(self, name: str, dtype: str, sizes: Sequence[t.Dim], *, device: str = "cpu") -> int:
        """Add an output whose memory the caller passes."""
        return self._tensor(name, dtype, sizes, t.Bound(value=len(self._values)), device)

    def constant(self, name: str, dtype: str, sizes: Sequence[int], *, device: str = "cpu") -> int:
        """Add a constant of the program."""
        return self._tensor(name, dtype, sizes, t.Constant(name=name), device)

    def state(self, name: str, dtype: str, sizes: Sequence[int], *, device: str = "cpu") -> int:
        """Add a state of the session."""
        return self._tensor(name, dtype, sizes, t.State(name=name), device)

    def planned(
        self, name: str, dtype: str, sizes: Sequence[t.Dim], *, device: str = "cpu", kind: t.BufferKind = "scratch"
    ) -> int:
        """Add a tensor in planned memory."""
        key = (device, kind)
        offset = -(-self._buffers.get(key, 0) // 256) * 256
        elements = math.prod(upper_bound(size, self._ranges) for size in sizes)
        self._buffers[key] = offset + elements * DTYPES[dtype].itemsize
        buffer = list(self._buffers).index(key)
        return self._tensor(name, dtype, sizes, t.Planned(buffer=buffer, offset_bytes=offset), device)

    def value(self, value: t.Value) -> int:
        """Add any value."""
        self._values.append(value)
        return len(self._values) - 1

    def literal(self, operand: Operand) -> int:
        """Add a number, flag, string, None, or a list of such."""
        if isinstance(operand, list | tuple):
            items = tuple(self.literal(item) for item in operand)
            return self.value(t.ListValue(name="list", items=items))
        assert operand is None or isinstance(operand, bool | int | float | str)
        return self.value(t.ScalarValue(name="literal", value=operand))

    def delegate(self, delegate: t.Delegate, args: Sequence[int], outputs: Sequence[int]) -> None:
        """Add a region and a call of it."""
        self._delegates.append(delegate)
        call = t.DelegateCall(delegate=len(self._delegates) - 1, args=tuple(args), outputs=tuple(outputs))
        self.instructions.append(call)

    def call(self, operator: str, *args: int, writes: Sequence[int] = (), **kwargs: int) -> None:
        """Add a call; arguments are indices of values. What is named `out` is written, as is all in `writes`."""
        if operator not in self._operators:
            self._operators.append(operator)
        outputs = (*writes, *(index for name, index in kwargs.items() if name == "out"))
        index = self._operators.index(operator)
        self.instructions.append(t.KernelCall(operator=index, args=args, kwargs=kwargs, outputs=outputs))

    def build(self, outputs: Sequence[int]) -> t.Method:
        """Return the method."""
        buffers = [
            t.PlannedBuffer(nbytes=nbytes, device=device, kind=kind) for (device, kind), nbytes in self._buffers.items()
        ]
        return t.Method(
            name=self._name,
            symbols=self._symbols,
            values=tuple(self._values),
            inputs=tuple(self._inputs),
            outputs=tuple(outputs),
            buffers=tuple(buffers),
            operators=tuple(self._operators),
            delegates=tuple(self._delegates),
            instructions=tuple(self.instructions),
        )

    def _tensor(self, name: str, dtype: str, sizes: Sequence[t.Dim], storage: t.Storage, device: str) -> int:
        strides: list[t.Dim] = []
        step: t.Dim = 1
        for size in reversed(sizes):
            strides.append(step)
            both = isinstance(step, int) and isinstance(size, int)
            step = step * max(size, 1) if both else f"({step})*({size})"  # type: ignore[operator]  # both ints
        value = t.TensorValue(
            name=name, dtype=dtype, sizes=tuple(sizes), strides=tuple(reversed(strides)), storage=storage, device=device
        )
        return self.value(value)


def write_program(
    folder: str | os.PathLike[str],
    methods: Sequence[t.Method],
    *,
    constants: Mapping[str, torch.Tensor] | None = None,
    state: Mapping[str, t.StateSpec] | None = None,
    delegates: Mapping[str, bytes] | None = None,
) -> t.Program:
    """Write a program folder and return the program."""
    specs = {n: t.ConstantSpec(dtype=NAMES[c.dtype], sizes=tuple(c.shape)) for n, c in (constants or {}).items()}
    program = t.Program(
        producer="device_core.testing", constants=specs, state=dict(state or {}), methods=tuple(methods)
    )
    with ProgramWriter(folder) as writer:
        for name, constant in (constants or {}).items():
            writer.add_constant(name, constant)
        for key, payload in (delegates or {}).items():
            writer.add_delegate(key, payload)
        return writer.finish(program)
