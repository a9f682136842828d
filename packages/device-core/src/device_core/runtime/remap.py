"""The same program on another device."""

import msgspec

from device_core.device import Device
from device_core.errors import DeviceError
from device_core.schema import types as t

_COPIES = {"device_copy::h2d.out": "aten::clone.out", "device_copy::d2h.out": "aten::clone.out"}


def devices_of(program: t.Program) -> frozenset[Device]:
    """Return every device that a program mentions."""
    found = {state.device for state in program.state.values()}
    for method in program.methods:
        found |= {buffer.device for buffer in method.buffers}
        found |= {delegate.device for delegate in method.delegates}
        found |= {value.device for value in method.values if isinstance(value, t.TensorValue)}
    return frozenset(map(Device.parse, found))


def moved(program: t.Program, device: Device) -> t.Program:
    """Return `program` with `device` in the place of its one device other than the host.

    Where `device` is the host, copies between devices become clones. Raises DeviceError where the program uses
    several devices, or regions whose payloads were made for another type of device.
    """
    others = sorted(found for found in devices_of(program) if not found.is_host)
    if not others or others == [device]:
        return program
    if len(others) > 1:
        names = ", ".join(map(str, others))
        raise DeviceError(f"the program uses {names}; only one with a single device can be moved to {device}")
    if device.is_host and any(method.delegates for method in program.methods):
        raise DeviceError(f"the program has regions compiled for {others[0]}; it cannot be moved to the host")
    old, new = str(others[0]), str(device)
    return msgspec.structs.replace(
        program,
        state={name: _on(state, old, new) for name, state in program.state.items()},
        methods=tuple(_moved_method(method, old, new) for method in program.methods),
    )


def _moved_method(method: t.Method, old: str, new: str) -> t.Method:
    operators = method.operators
    values = tuple(_on(v, old, new) if isinstance(v, t.TensorValue) else v for v in method.values)
    moved = msgspec.structs.replace(
        method,
        values=values,
        buffers=tuple(_on(buffer, old, new) for buffer in method.buffers),
        delegates=tuple(_on(delegate, old, new) for delegate in method.delegates),
    )
    if new == "cpu":
        moved = msgspec.structs.replace(moved, operators=tuple(_COPIES.get(name, name) for name in operators))
    return moved


def _on[Record: (t.StateSpec, t.TensorValue, t.PlannedBuffer, t.Delegate)](
    record: Record, old: str, new: str
) -> Record:
    return msgspec.structs.replace(record, device=new) if record.device == old else record
