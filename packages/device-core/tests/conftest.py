"""Fixtures of the tests: a fake device, a stopped garbage collector, and a program with shared weights and state."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from device_core.schema import types as t
from device_core.testing import MethodBuilder, RecordingDevice, write_program

torch.set_num_threads(1)


@pytest.fixture
def recording() -> Iterator[RecordingDevice]:
    """Two fake devices in the place of CUDA; leaks fail the test."""
    with RecordingDevice() as device:
        yield device


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Stop the garbage collector: what a test lets go of is freed at once or counts as kept.

    It runs once ahead, so that what earlier tests left in cycles is not freed in the middle of this one.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def step_method(device: str) -> t.Method:
    """Return `total += x; out = total * weight`."""
    method = MethodBuilder("step")
    x = method.input("x", "float32", (4,), device=device)
    total = method.state("total", "float32", (4,), device=device)
    weight = method.constant("weight", "float32", (4,), device=device)
    out = method.planned("out", "float32", (4,), device=device, kind="io")
    method.call("aten::add_.Tensor", total, x, writes=(total,))
    method.call("aten::mul.out", total, weight, out=out)
    return method.build([out])


def rows_method(device: str) -> t.Method:
    """Return `out = x * weight + last row of x`, for 1 to 8 rows."""
    method = MethodBuilder("rows", symbols={"s0": (1, 8)})
    x = method.input("x", "float32", ("s0", 4), device=device)
    last = method.value(
        t.TensorValue(
            name="last",
            dtype="float32",
            sizes=(1, 4),
            strides=(4, 1),
            storage=t.Bound(value=x, offset_bytes="(s0 - 1)*16"),
            device=device,
        )
    )
    weight = method.constant("weight", "float32", (4,), device=device)
    scaled = method.planned("scaled", "float32", ("s0", 4), device=device)
    out = method.planned("out", "float32", ("s0", 4), device=device, kind="io")
    method.call("aten::mul.out", x, weight, out=scaled)
    method.call("aten::add.out", scaled, last, out=out)
    return method.build([out])


@pytest.fixture
def stateful(tmp_path: Path) -> Callable[[str], Path]:
    """Write a program of `step` and `rows` for a device; returns its folder."""

    def write(device: str = "cpu") -> Path:
        folder = tmp_path / f"program-{device.replace(':', '-')}"
        write_program(
            folder,
            [step_method(device), rows_method(device)],
            constants={"weight": torch.tensor([1.0, 2.0, 3.0, 4.0]), "start": torch.arange(4.0)},
            state={"total": t.StateSpec(dtype="float32", sizes=(4,), device=device, initial="start")},
        )
        return folder

    return write


@pytest.fixture
def several_devices(tmp_path: Path) -> Path:
    """Write a method that goes from the host over two devices and back; returns its folder."""
    method = MethodBuilder("through")
    x = method.input("x", "float32", (4,))
    on_0 = method.planned("on_0", "float32", (4,), device="cuda:0")
    between = method.planned("between", "float32", (4,))
    on_1 = method.planned("on_1", "float32", (4,), device="cuda:1")
    out = method.planned("out", "float32", (4,), kind="io")
    method.call("device_copy::h2d.out", x, out=on_0)
    method.call("aten::neg.out", on_0, out=on_0)
    method.call("device_copy::d2h.out", on_0, out=between)
    method.call("aten::add.out", between, x, out=between)
    method.call("device_copy::h2d.out", between, out=on_1)
    method.call("aten::exp.out", on_1, out=on_1)
    method.call("device_copy::d2h.out", on_1, out=out)
    write_program(tmp_path / "several", [method.build([out])])
    return tmp_path / "several"
