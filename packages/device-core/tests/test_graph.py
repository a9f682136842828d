"""What is not captured, and why."""

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from device_core import (
    CaptureError,
    Device,
    Module,
    Session,
)
from device_core.runtime.graph import _explained
from device_core.testing import RecordingDevice

Folder = Callable[..., Path]


CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")


WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


CAPTURES: dict[str, Callable[[Session], object]] = {
    "method": lambda session: session.capture("step"),
    "function": lambda session: session.capture_function(lambda live: live.execute("step", [torch.ones(4)])),
}


@pytest.mark.parametrize("capture", CAPTURES.values(), ids=CAPTURES.keys())
@pytest.mark.parametrize(
    ("device", "message"), [("cpu", "runs on the host"), ("cuda:0", "only plays a device")], ids=["host", "fake"]
)
def test_capture_without_cuda_is_refused(
    recording: RecordingDevice,
    stateful: Folder,
    capture: Callable[[Session], object],
    device: str,
    message: str,
) -> None:
    with Module.load(stateful(device)) as module, pytest.raises(CaptureError, match=message):
        capture(module.default_session)


def test_what_cannot_be_captured_is_listed(recording: RecordingDevice, several_devices: Path) -> None:
    refused = pytest.raises(CaptureError)
    with Module.load(several_devices) as module, module.default_session.recording(), refused as caught:
        module.execute("through", [torch.ones(4)])
    assert "instruction 0: device_copy::h2d.out: copies between host and device" in str(caught.value)
    assert "instruction 3: aten::add.out: runs on the host" in str(caught.value)


@pytest.mark.usefixtures("no_collector")
def test_failed_capture_holds_nothing() -> None:
    def capture() -> None:
        memory = torch.zeros(4)
        held.append(weakref.ref(memory))
        try:
            raise CaptureError("runs on the host")
        except CaptureError as error:
            raise _explained(error, CUDA0) from error

    held: list[weakref.ref[torch.Tensor]] = []
    with pytest.raises(CaptureError, match="runs on the host"):
        capture()
    assert held[0]() is None
