"""Devices: parsing, writing, order and refusals."""

import pytest
import torch
from device_core import HOST, Device, DeviceError, DeviceType


@pytest.mark.parametrize(
    ("text", "device", "written"),
    [
        ("cpu", HOST, "cpu"),
        ("cpu:0", HOST, "cpu"),
        ("cuda", Device(DeviceType.CUDA), "cuda:0"),
        ("cuda:3", Device(DeviceType.CUDA, 3), "cuda:3"),
        ("  CUDA:1 \n", Device(DeviceType.CUDA, 1), "cuda:1"),
        ("cuda:127", Device(DeviceType.CUDA, 127), "cuda:127"),
    ],
    ids=repr,
)
def test_parse(text: str, device: Device, written: str) -> None:
    assert Device.parse(text) == device
    assert str(device) == written
    assert Device.parse(written) == device
    assert device.torch == torch.device(written)


@pytest.mark.parametrize(
    "text", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1:2", "cuda:128", "cuda:٣", "cpu:1", "cuda:1.0", "meta"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(DeviceError):
        Device.parse(text)


def test_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(DeviceError, match="cpu, cuda"):
        Device.parse("tpu:0")


@pytest.mark.parametrize(("kind", "index"), [(DeviceType.CUDA, -1), (DeviceType.CUDA, True), (1, 0), ("cuda", 0)])
def test_constructor_is_strict(kind: object, index: int) -> None:
    with pytest.raises(DeviceError):
        Device(kind, index)  # type: ignore[arg-type]  # what the test is about


def test_order_is_by_type_then_index() -> None:
    devices = [Device.parse(text) for text in ("cuda:2", "cpu", "cuda:0", "cuda:1")]
    assert [str(device) for device in sorted(devices)] == ["cpu", "cuda:0", "cuda:1", "cuda:2"]


def test_device_of_a_tensor() -> None:
    assert Device.of(torch.zeros(1)) == HOST
    with pytest.raises(DeviceError):
        Device.of(torch.zeros(1, device="meta"))
