"""Random programs compiled, run on the devices that are registered, and compared with eager torch."""

from collections.abc import Iterator
from pathlib import Path

import torch
from device_core import HOST, Device, Module, Session, clone_to
from device_core.schema import types as t
from device_core.schema.dtypes import DTYPES
from device_core.schema.validate_instructions import read_by

from export_passes.pipeline import lower
from export_passes.testing.models import assert_equal
from export_passes.testing.random_graphs import Eager, RandomProgram


def compare(program: RandomProgram, folder: Path) -> t.Program:
    """Lower `program`, run each method twice, and compare outputs, written inputs and state with eager torch.

    Memory comes from the allocators that are registered; eager torch runs on the host. Raises PassError where planned
    tensors that are alive together share bytes, and AssertionError where something differs or is not where it should
    be.
    """
    lowered = lower(program.methods, program.config)
    check_placement(lowered.program)
    lowered.save(folder, overwrite=True)
    with Module.load(folder) as module:
        eager, session = program.eager(), module.new_session()
        check_memory(module, session)
        for name in [*program.methods, *program.methods]:
            _run(program, name, session, eager)
            for state, tensor in session.state.items():
                assert_equal(clone_to(tensor, HOST), eager.buffers[state])
        uploads = sum(tensor.nbytes for (_, device), tensor in module.constants.items() if device != "cpu")
        assert_equal(module.uploaded_nbytes, uploads)
    return lowered.program


def check_placement(program: t.Program) -> None:
    """Raise AssertionError where a tensor is not on the device of its storage, or a copy is not read."""
    for method in program.methods:
        for value in method.values:
            if isinstance(value, t.TensorValue):
                assert value.device == _home(value, method, program), f"{method.name}: {value} is elsewhere"
        unread = list(_unread_copies(method))
        assert not unread, f"{method.name}: nobody reads the copies {unread}"


def check_memory(module: Module, session: Session) -> None:
    """Raise AssertionError where memory is not on the device that the program names for it."""
    named = {f"state {name}": (module.program.state[name].device, tensor) for name, tensor in session.state.items()}
    named |= {f"constant {name}": (device, tensor) for (name, device), tensor in module.constants.items()}
    for method in module.program.methods:
        buffers = zip(method.buffers, module.entry(method.name).planned, strict=True)
        named |= {f"{method.name}: buffer {i}": (plan.device, made.memory) for i, (plan, made) in enumerate(buffers)}
    for name, (device, tensor) in named.items():
        _check_device(name, tensor, device)


def _check_device(name: str, tensor: torch.Tensor, device: str) -> None:
    assert Device.of(tensor) == Device.parse(device), f"{name}: expected memory of {device}, got {tensor.device}"


def _home(value: t.TensorValue, method: t.Method, program: t.Program) -> str:
    match value.storage:
        case t.Planned(buffer=buffer):
            return method.buffers[buffer].device
        case t.State(name=name):
            return program.state[name].device
        case t.Bound(value=base):
            bound = method.values[base]
            assert isinstance(bound, t.TensorValue)
            return bound.device
    return value.device


def _unread_copies(method: t.Method) -> Iterator[int]:
    """Yield copies whose bytes no later instruction reads, neither by their name nor by that of a view."""
    for i, call in enumerate(method.instructions):
        if isinstance(call, t.KernelCall) and method.operators[call.operator].startswith("device_copy::"):
            (copy,) = call.outputs
            later = {index for other in method.instructions[i + 1 :] for index in read_by(method, other)}
            if not any(_overlap(method, copy, index) for index in later | set(method.outputs)):
                yield copy


def _overlap(method: t.Method, one: int, other: int) -> bool:
    a, b = method.values[one], method.values[other]
    if one == other or not isinstance(a, t.TensorValue) or not isinstance(b, t.TensorValue):
        return one == other
    if not isinstance(a.storage, t.Planned) or not isinstance(b.storage, t.Planned):
        return False
    (a_start, a_end), (b_start, b_end) = _bytes(a, a.storage), _bytes(b, b.storage)
    return a.storage.buffer == b.storage.buffer and a_start < b_end and b_start < a_end


def _bytes(value: t.TensorValue, storage: t.Planned) -> tuple[int, int]:
    """Return the first byte of a tensor of fixed sizes and the one after its last."""
    last = sum((int(n) - 1) * int(s) for n, s in zip(value.sizes, value.strides, strict=True))
    return int(storage.offset_bytes), int(storage.offset_bytes) + (last + 1) * DTYPES[value.dtype].itemsize


def _run(program: RandomProgram, name: str, session: Session, eager: Eager) -> None:
    method = session.module.entry(name).method
    expected = [tensor.clone() for tensor in program.inputs[name]]
    values = [_tensor_value(method, index) for index in method.inputs]
    given = [clone_to(tensor, Device.parse(value.device)) for tensor, value in zip(expected, values, strict=True)]
    supplied = [_memory_for(method, index) for index in method.outputs]
    outputs = session.execute(name, given, outputs=supplied)
    for index, output in zip(method.outputs, outputs, strict=True):
        _check_device(f"{name}: output {index}", output, _tensor_value(method, index).device)
    assert_equal([clone_to(tensor, HOST) for tensor in outputs], eager.execute(name, expected))
    for passed, wanted, value in zip(given, expected, values, strict=True):
        if isinstance(value.storage, t.Bound):
            assert_equal(clone_to(passed, HOST), wanted)


def _memory_for(method: t.Method, index: int) -> torch.Tensor | None:
    """Return new memory for an output that the caller supplies."""
    value = _tensor_value(method, index)
    if isinstance(value.storage, t.Bound) and value.storage.value == index and index not in method.inputs:
        return clone_to(
            torch.zeros([int(size) for size in value.sizes], dtype=DTYPES[value.dtype]), Device.parse(value.device)
        )
    return None


def _tensor_value(method: t.Method, index: int) -> t.TensorValue:
    value = method.values[index]
    assert isinstance(value, t.TensorValue)
    return value
