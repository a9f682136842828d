"""CUDA graphs of methods, and of functions that execute several methods of a session."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from device_core.allocator import MAX_ALIGNMENT, allocators
from device_core.buffer import DeviceMemoryBuffer
from device_core.cuda import CudaAllocator
from device_core.device import Device, DeviceType
from device_core.errors import CaptureError, ClosedError
from device_core.runtime.binding import Argument, TensorCheck
from device_core.runtime.remap import devices_of
from device_core.schema import types as t
from device_core.schema.dims import evaluate
from device_core.schema.dtypes import DTYPES
from device_core.schema.layout import Layout, layout_of

if TYPE_CHECKING:
    from device_core.runtime.module import Entry
    from device_core.runtime.session import Session

WARM_UP_RUNS = 2
"""Runs ahead of a capture: the first compiles kernels and creates library handles, which a capture must not."""


class CapturedFunction[T]:
    """Device work of a function, recorded once and repeated by `replay`.

    result: what the function returned; its tensors are filled anew by each replay.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, result: T) -> None:
        self._graph: torch.cuda.CUDAGraph | None = graph
        self.result = result

    def replay(self) -> None:
        """Put the recorded work on the current stream; does not wait for it."""
        if self._graph is None:
            raise ClosedError("the capture was closed")
        self._graph.replay()

    def close(self) -> None:
        """Free the graph, once the device has done its work; a second call does nothing."""
        graph, self._graph = self._graph, None
        if graph is not None:
            torch.cuda.synchronize()
            graph.reset()


class CapturedMethod(CapturedFunction[tuple[Any, ...]]):
    """A captured method: write to `inputs`, `replay`, read `outputs`.

    inputs: tensors of its own, at the sizes of the capture; numbers are fixed. outputs: as `Session.execute` returns.
    """

    def __init__(
        self, captured: CapturedFunction[tuple[Any, ...]], inputs: Sequence[Argument], memory: DeviceMemoryBuffer
    ) -> None:
        graph = captured._graph
        assert graph is not None
        super().__init__(graph, captured.result)
        self.inputs = tuple(inputs)
        self.outputs = captured.result
        self._memory = memory

    def close(self) -> None:
        """Free the graph and the inputs; a second call does nothing."""
        super().close()
        self._memory.close()


class CaptureCache:
    """Captures of one method for the sizes asked for, made on demand; the least recently used ones are closed."""

    def __init__(self, session: "Session", method: str, *, capacity: int = 8) -> None:
        self._session = session
        self._method = method
        self._capacity = capacity
        self._captures: OrderedDict[tuple[tuple[str, int], ...], CapturedMethod] = OrderedDict()

    def get(self, symbols: Mapping[str, int]) -> CapturedMethod:
        """Return the capture for these values of the method's symbols."""
        key = tuple(sorted(symbols.items()))
        if key not in self._captures:
            while len(self._captures) >= self._capacity:
                self._captures.popitem(last=False)[1].close()
            self._captures[key] = self._session.capture(self._method, symbols=symbols)
        self._captures.move_to_end(key)
        return self._captures[key]

    def __len__(self) -> int:
        return len(self._captures)

    def close(self) -> None:
        """Close all captures."""
        while self._captures:
            self._captures.popitem()[1].close()


def capture_method(
    session: "Session",
    method: str,
    *,
    symbols: Mapping[str, int] | None = None,
    inputs: Sequence[Argument] | None = None,
) -> CapturedMethod:
    """Capture one method; see `Session.capture`."""
    device = _device(session)
    entry = session.module.entry(method)
    memory, static = _static_inputs(entry, symbols, inputs, device)
    try:
        pool = session.module.graph_pool()
        captured = _capture(session, device, lambda live: live.execute(method, static), static, pool)
    except BaseException:
        memory.close()
        raise
    return CapturedMethod(captured, static, memory)


def capture_function[T](
    session: "Session", function: Callable[["Session"], T], *, preserved: Sequence[torch.Tensor] = ()
) -> CapturedFunction[T]:
    """Capture a function of a session; see `Session.capture_function`."""
    return _capture(session, _device(session), function, preserved, None)


def _capture[T](
    session: "Session",
    device: Device,
    function: Callable[["Session"], T],
    preserved: Sequence[Argument],
    pool: Any,
) -> CapturedFunction[T]:
    kept = [(x, x.clone()) for x in preserved if isinstance(x, torch.Tensor)]
    with session.module.lock, torch.cuda.device(device.index):
        try:
            try:
                with session.module.new_session() as scratch:
                    _warm_up(function, scratch)
            finally:
                for tensor, before in kept:
                    tensor.copy_(before)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with session.recording(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = function(session)
        except Exception as error:
            raise _explained(error, device) from error
    return CapturedFunction(graph, result)


def _explained(error: Exception, device: Device) -> CaptureError:
    """Return what to raise for an error: the first of its chain is the reason, others only say that it happened.

    It is a new error even where the reason is a CaptureError. One that is raised from itself refers to itself, and the
    memory that the failed calls held would wait for the garbage collector.
    """
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    if isinstance(first, CaptureError):
        return CaptureError(str(first))
    where = "".join(f"; {note}" for note in getattr(first, "__notes__", ()))
    reason = next(iter(str(first).strip().splitlines()), type(first).__name__)
    return CaptureError(f"capture on {device} failed: {reason}{where}")


def _warm_up(function: Callable[["Session"], object], scratch: "Session") -> None:
    """Run on another stream, as captures do, with state that nobody else sees."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with scratch.recording(), torch.cuda.stream(stream):
        for _ in range(WARM_UP_RUNS):
            function(scratch)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _device(session: "Session") -> Device:
    """Return the device to capture on. Raises CaptureError where there is none."""
    devices = sorted(device for device in devices_of(session.module.program) if not device.is_host)
    if not devices:
        raise CaptureError("capture needs a method on a CUDA device; the program runs on the host")
    if len(devices) > 1:
        raise CaptureError(f"capture needs a program on one CUDA device, got {', '.join(map(str, devices))}")
    if not isinstance(allocators().get(DeviceType.CUDA), CudaAllocator):
        raise CaptureError("capture needs CUDA's own allocator; the one that is registered only plays a device")
    return devices[0]


def _static_inputs(
    entry: "Entry", symbols: Mapping[str, int] | None, examples: Sequence[Argument] | None, device: Device
) -> tuple[DeviceMemoryBuffer, list[Argument]]:
    """Return memory, and in it tensors for the inputs, filled from examples or with zeros."""
    method = entry.method
    values = [method.values[i] for i in method.inputs]
    if examples is not None:
        symbols = entry.signature.symbols(examples)
    symbols = dict(symbols or {})
    if missing := [s.name for s in method.symbols if s.name not in symbols]:
        raise CaptureError(f"method {method.name!r}: capture needs values for the symbols {', '.join(missing)}")
    layouts: dict[int, tuple[Layout, int]] = {}
    nbytes = 0
    for position, value in enumerate(values):
        if isinstance(value, t.TensorValue):
            if value.device != str(device):
                raise CaptureError(f"method {method.name!r}: input {value.name} is on {value.device}, not on {device}")
            layouts[position] = (layout_of(value, symbols), nbytes)
            nbytes += -(-layouts[position][0].span_bytes // MAX_ALIGNMENT) * MAX_ALIGNMENT
    memory = DeviceMemoryBuffer.create(nbytes, device, alignment=MAX_ALIGNMENT)
    memory.memory.zero_()
    static: list[Argument] = []
    for position, value in enumerate(values):
        match value:
            case t.TensorValue(dtype=dtype):
                layout, offset = layouts[position]
                tensor = memory.tensor(DTYPES[dtype], layout.sizes, layout.strides, offset_bytes=offset)
                if examples is not None:
                    tensor.copy_(TensorCheck(f"{method.name}: input {value.name}", value, symbols)(examples[position]))
                static.append(tensor)
            case t.SymIntValue(expression=expression):
                static.append(evaluate(expression, symbols))
            case t.ScalarValue(value=scalar):
                static.append(scalar)
            case t.NonFiniteValue(value=text):
                static.append(float(text))
    return memory, static
