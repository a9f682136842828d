"""Opaque regions: running, closing, failing to load."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from device_core import (
    BACKENDS,
    HOST,
    Backend,
    Device,
    DeviceError,
    MissingOperatorError,
    Module,
    ProgramError,
    Region,
    clone_to,
)
from device_core.runtime.backends import Argument
from device_core.schema import types as t
from device_core.testing import MethodBuilder, RecordingDevice, write_program

Folder = Callable[..., Path]


CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")


WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


class Negate(Backend):
    """A backend whose regions negate; payload `bad` fails to load."""

    def __init__(self) -> None:
        self.closed = 0

    @property
    def name(self) -> str:
        return "negate"

    def load(self, payload: bytes, device: Device) -> Region:
        if payload == b"bad":
            raise ProgramError("negate", ["its payload is bad"])
        return NegateRegion(self)


class NegateRegion(Region):
    def __init__(self, backend: Negate) -> None:
        self._backend = backend

    def execute(self, inputs: Sequence[Argument], outputs: Sequence[torch.Tensor]) -> None:
        for x, out in zip(inputs, outputs, strict=True):
            assert isinstance(x, torch.Tensor)
            torch.ops.aten.neg.out(x, out=out)

    def close(self) -> None:
        self._backend.closed += 1


def region_program(folder: Path, *payloads: bytes) -> Path:
    method = MethodBuilder("f")
    x = method.input("x", "float32", (4,), device="cuda:0")
    out = method.planned("out", "float32", (4,), device="cuda:0", kind="io")
    for i in range(len(payloads)):
        region = t.Delegate(backend="negate", key=f"k{i}", region=f"r{i}", device="cuda:0")
        method.delegate(region, [x if i == 0 else out], [out])
    write_program(folder, [method.build([out])], delegates={f"k{i}": p for i, p in enumerate(payloads)})
    return folder


def test_regions_run_and_are_closed(recording: RecordingDevice, tmp_path: Path) -> None:
    backend = Negate()
    with BACKENDS.added(backend), Module.load(region_program(tmp_path / "p", b"1", b"2", b"3")) as module:
        (out,) = module.execute("f", [clone_to(WEIGHT, CUDA0)])
        assert torch.equal(clone_to(out, HOST), -WEIGHT)
        assert module.method_meta("f").uses_backend("negate")
    assert backend.closed == 3
    assert BACKENDS.get("negate") is None


def test_failing_region_closes_the_others(recording: RecordingDevice, tmp_path: Path) -> None:
    backend = Negate()
    folder = region_program(tmp_path / "p", b"1", b"bad", b"3")
    with BACKENDS.added(backend), pytest.raises(ProgramError, match="payload is bad"):
        Module.load(folder)
    assert backend.closed == 1
    assert recording.live_nbytes() == 0


def test_missing_backend_and_damaged_payload(recording: RecordingDevice, tmp_path: Path) -> None:
    folder = region_program(tmp_path / "p", b"1")
    with pytest.raises(MissingOperatorError, match="backend 'negate' is not registered"):
        Module.load(folder)
    (folder / "delegates" / "k0").write_bytes(b"2")
    with BACKENDS.added(Negate()), pytest.raises(ProgramError, match="SHA-256"):
        Module.load(folder)


def test_regions_are_not_moved_to_the_host(recording: RecordingDevice, tmp_path: Path) -> None:
    with BACKENDS.added(Negate()), pytest.raises(DeviceError, match="compiled for cuda:0"):
        Module.load(region_program(tmp_path / "p", b"1"), device=HOST)
