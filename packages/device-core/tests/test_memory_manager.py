"""Planned memory: what is shared, and what is freed when loading fails."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from device_core import (
    Device,
    MemoryManager,
    Module,
    OutOfMemoryError,
)
from device_core.schema import types as t
from device_core.testing import RecordingDevice

Folder = Callable[..., Path]


CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")


WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def planned(*buffers: tuple[int, str, t.BufferKind], name: str = "f") -> t.Method:
    made = tuple(t.PlannedBuffer(nbytes=n, device=device, kind=kind) for n, device, kind in buffers)
    return t.Method(name=name, values=(), inputs=(), outputs=(), buffers=made, instructions=())


def test_scratch_is_shared_and_io_is_not(recording: RecordingDevice) -> None:
    methods = [
        planned((100, "cuda:0", "io"), (500, "cuda:0", "scratch"), (8, "cuda:1", "scratch"), name="f"),
        planned((700, "cuda:0", "scratch"), (30, "cuda:0", "scratch"), (50, "cuda:0", "io"), name="g"),
        planned(name="h"),
    ]
    with MemoryManager(methods) as memory:
        f, g = memory.planned("f"), memory.planned("g")
        assert f[1] is g[0]
        assert f[1].nbytes == 700
        assert len({id(b) for b in (*f, *g)}) == 5
        assert memory.nbytes == 700 + 30 + 8 + 100 + 50 == recording.live_nbytes()
        assert memory.devices == {CUDA0, CUDA1}
        assert memory.planned("h") == ()


def test_host_programs_ask_no_device(recording: RecordingDevice, stateful: Folder) -> None:
    with Module.load(stateful("cpu")) as module:
        module.execute("step", [torch.ones(4)])
    assert recording.allocations == 0


@pytest.mark.parametrize("capacity", range(0, 400, 16), ids="capacity{}".format)
def test_failed_loads_free_everything(stateful: Folder, capacity: int) -> None:
    with RecordingDevice(capacity_nbytes=capacity) as device:
        try:
            with Module.load(stateful("cuda:0")) as module:
                module.new_session()
        except OutOfMemoryError:
            assert capacity < 16 + 128 + 128 + 16 + 16
        assert device.live_nbytes() == 0
