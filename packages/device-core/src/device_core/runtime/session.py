"""A session: one set of state over the weights and methods of a module."""

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch

from device_core.allocator import MAX_ALIGNMENT
from device_core.buffer import DeviceMemoryBuffer
from device_core.copy_ops import copy
from device_core.device import Device
from device_core.errors import ClosedError
from device_core.runtime.binding import Argument
from device_core.runtime.graph import CapturedFunction, CapturedMethod, capture_function, capture_method
from device_core.runtime.method import LinkedMethod
from device_core.runtime.values import Storages
from device_core.schema import types as t
from device_core.schema.dtypes import DTYPES
from device_core.schema.layout import contiguous_strides
from device_core.schema.validate_values import spec_nbytes

if TYPE_CHECKING:
    from device_core.runtime.module import Module

LINKED_SIZES = 32
"""How many sets of sizes of each method stay linked."""


class Session:
    """State of its own, named, over what its module shares. Made by `Module.new_session`.

    Sessions of a module run one at a time; on a device all of them use the same current stream.
    """

    def __init__(self, module: "Module") -> None:
        self._module = module
        self._linked: dict[str, OrderedDict[tuple[int, ...], LinkedMethod]] = {}
        self._state: dict[str, torch.Tensor] = {}
        self._captures: weakref.WeakSet[CapturedFunction[Any]] = weakref.WeakSet()
        self._recording = False
        self._closed = False
        with ExitStack() as stack:
            for name, spec in module.program.state.items():
                device = Device.parse(spec.device)
                alignment = 64 if device.is_host else MAX_ALIGNMENT
                buffer = stack.enter_context(DeviceMemoryBuffer.create(spec_nbytes(spec), device, alignment=alignment))
                self._state[name] = buffer.tensor(DTYPES[spec.dtype], spec.sizes, contiguous_strides(spec.sizes))
            self.reset()
            self._buffers = stack.pop_all()

    @property
    def module(self) -> "Module":
        """Return the module."""
        return self._module

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """Return the state by name: the memory itself, on its device."""
        return MappingProxyType(self._state)

    def reset(self) -> None:
        """Give every state its initial value, in place."""
        self._check_open()
        for name, tensor in self._state.items():
            initial = self._module.program.state[name].initial
            if initial is None:
                tensor.zero_()
            else:
                copy(self._module.constants[initial, "cpu"], tensor)

    def execute(
        self, method: str, inputs: Sequence[Argument] = (), *, outputs: Sequence[torch.Tensor | None] = ()
    ) -> tuple[Any, ...]:
        """Run a method.

        inputs: tensors on the devices that `Module.method_meta` tells, and numbers where the method has such.
        outputs: memory for the outputs that the caller supplies, by position; other places are None or left out. It
        must not overlap an input, memory for another output, or planned memory of the method: the addresses from its
        first to its last byte are compared with theirs, and a tensor without bytes overlaps nothing.
        Returns the outputs. Those in planned memory are views of it: the next execution of the same method, in any
        session of the module, writes there; others stay as they are. Work on a device goes to its current stream, and
        the call does not wait for it. Raises InputError, before anything runs, where an argument does not fit.
        """
        self._check_open()
        with self._module.lock:
            linked = self.linked(method, inputs)
            if self._recording:
                linked.instructions.check_capturable()
            return linked.execute(inputs, outputs)

    def capture(
        self, method: str, *, symbols: Mapping[str, int] | None = None, inputs: Sequence[Argument] | None = None
    ) -> CapturedMethod:
        """Record a method into a CUDA graph.

        inputs: examples, which the static inputs start with; without them these are zeros of the sizes that `symbols`
        tells. Warm-up runs in a session of its own: the state of this one is not touched, while the method's planned
        memory is written. Raises CaptureError, and leaves nothing behind, where the method has instructions that run
        on the host, on several devices, or otherwise cannot be recorded.
        """
        return self._track(capture_method(self, method, symbols=symbols, inputs=inputs))

    def capture_function[T](
        self, function: Callable[["Session"], T], *, preserved: Sequence[torch.Tensor] = ()
    ) -> CapturedFunction[T]:
        """Record a function that executes methods of a session into one CUDA graph.

        function: called with a scratch session to warm up and then with this one; it must use the session that it is
        given, and may do other work on the device's current stream. preserved: tensors that it writes outside of
        sessions; they are after this call what they were before. Raises CaptureError as `capture` does.
        """
        return self._track(capture_function(self, function, preserved=preserved))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Refuse, within a block, to execute what cannot be captured."""
        before, self._recording = self._recording, True
        try:
            yield
        finally:
            self._recording = before

    def linked(self, method: str, inputs: Sequence[Argument] = ()) -> LinkedMethod:
        """Return a method linked for the sizes of `inputs`; recently used sizes are kept."""
        self._check_open()
        entry = self._module.entry(method)
        symbols = entry.signature.symbols(inputs) if entry.method.symbols else {}
        key = tuple(symbols.values())
        known = self._linked.setdefault(method, OrderedDict())
        if (found := known.get(key)) is not None:
            if len(known) > 1:
                known.move_to_end(key)
            return found
        storages = Storages(planned=entry.planned, constants=self._module.constants, state=self._state)
        linked = LinkedMethod(entry.method, symbols, storages, entry.sites)
        known[key] = linked
        if len(known) > LINKED_SIZES:
            known.popitem(last=False)
        return linked

    def close(self) -> None:
        """Close the captures and free the state; a second call does nothing."""
        if not self._closed:
            self._closed = True
            for captured in list(self._captures):
                captured.close()
            self._linked.clear()
            self._state.clear()
            self._buffers.close()
            self._module.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _track[C: CapturedFunction[Any]](self, captured: C) -> C:
        self._captures.add(captured)
        return captured

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the session was closed")


def state_nbytes(program: t.Program) -> int:
    """Return the bytes that one session of a program holds."""
    return sum(spec_nbytes(spec) for spec in program.state.values())
