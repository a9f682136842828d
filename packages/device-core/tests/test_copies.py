"""The copy operators and `clone_to`."""

import pytest
import torch
from device_core import HOST, Device, DeviceError, InputError, clone_to, copy_ops
from device_core.testing import DeviceTensor, RecordingDevice

CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")


@pytest.fixture(autouse=True)
def _registered() -> None:
    copy_ops.register()
    copy_ops.register()


def on_device(x: torch.Tensor, device: Device = CUDA0) -> torch.Tensor:
    return clone_to(x, device)


@pytest.mark.parametrize("name", ["h2d", "d2h"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("sizes", [(), (0, 3), (2, 3)], ids=str)
def test_functional_form_is_a_clone(name: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    x = torch.randint(0, 2, sizes).to(dtype)
    result = getattr(torch.ops.device_copy, name)(x)
    assert torch.equal(result, x)
    assert result.dtype == dtype
    assert x.numel() == 0 or result.data_ptr() != x.data_ptr()


def test_functional_form_can_be_traced() -> None:
    class Through(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.device_copy.d2h(torch.ops.device_copy.h2d(x) + 1)

    rows = torch.export.Dim("rows", min=1, max=9)
    program = torch.export.export(Through(), (torch.ones(4, 3),), dynamic_shapes=({0: rows},))
    assert torch.equal(program.module()(torch.ones(7, 3)), torch.full((7, 3), 2.0))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert names == ["device_copy.h2d.default", "aten.add.Tensor", "device_copy.d2h.default"]


@pytest.mark.parametrize("sizes", [(), (1,), (8,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("device", [CUDA0, CUDA1], ids=str)
def test_out_forms_copy_once(recording: RecordingDevice, sizes: tuple[int, ...], device: Device) -> None:
    x, there, back = torch.randn(sizes), on_device(torch.zeros(sizes), device), torch.zeros(sizes)
    recording.forget()
    torch.ops.device_copy.h2d.out(x, out=there)
    torch.ops.device_copy.d2h.out(there, out=back)
    assert torch.equal(back, x)
    assert [(t.direction, t.index, t.nbytes) for t in recording.transfers] == [
        ("h2d", device.index, x.nbytes),
        ("d2h", device.index, x.nbytes),
    ]


def test_zero_bytes_need_no_copy(recording: RecordingDevice) -> None:
    there = on_device(torch.zeros(0, 3))
    torch.ops.device_copy.h2d.out(torch.zeros(0, 3), out=there)
    torch.ops.device_copy.d2h.out(there, out=torch.zeros(0, 3))
    assert recording.transfers == []


def test_out_is_resized_first(recording: RecordingDevice) -> None:
    x, there, back = torch.arange(4.0), on_device(torch.zeros(8)), torch.zeros(8)
    torch.ops.device_copy.h2d.out(x, out=there)
    assert there.shape == (4,)
    torch.ops.device_copy.d2h.out(there, out=back)
    assert torch.equal(back, x)


def wrong_arguments(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    host, there = torch.ones(4), on_device(torch.zeros(4))
    return {
        "x-elsewhere": (there, there),
        "out-elsewhere": (host, torch.zeros(4)),
        "dtype": (host, on_device(torch.zeros(4).int())),
        "too-large": (torch.ones(5), there),
        "strided": (torch.ones(2), on_device(torch.zeros(2, 2)).t()),
    }[name]


@pytest.mark.parametrize("name", ["x-elsewhere", "out-elsewhere", "dtype", "too-large", "strided"])
def test_refused_copies_change_nothing(recording: RecordingDevice, name: str) -> None:
    x, out = wrong_arguments(name)
    recording.forget()
    before = (out.host if isinstance(out, DeviceTensor) else out).clone()
    with pytest.raises(InputError, match="device_copy::h2d"):
        copy_ops.h2d_out(x, out=out)
    assert recording.transfers == []
    assert torch.equal(out.host if isinstance(out, DeviceTensor) else out, before)


def test_refused_copies_back_change_nothing(recording: RecordingDevice) -> None:
    out, there = torch.zeros(2), on_device(torch.ones(4))
    recording.forget()
    for x, target in [(torch.ones(2), out), (there, there), (there, out), (there, torch.zeros(4).int())]:
        with pytest.raises(InputError, match="device_copy::d2h"):
            copy_ops.d2h_out(x, out=target)
    assert recording.transfers == []
    assert out.tolist() == [0, 0]


@pytest.mark.parametrize("source", ["cpu", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("target", ["cpu", "cuda:0", "cuda:1"])
def test_clone_in_every_direction(recording: RecordingDevice, source: str, target: str) -> None:
    x = torch.randn(3, 4)
    there = clone_to(x, Device.parse(source))
    clone = clone_to(there, Device.parse(target))
    assert str(Device.of(clone)) == target
    there.zero_()
    assert torch.equal(clone_to(clone, HOST), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("sizes", [(), (0,), (10_000,), (2, 1, 3, 1, 2)], ids=str)
def test_clone_and_back(recording: RecordingDevice, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    x = torch.randint(-9, 9, sizes).to(dtype)
    back = clone_to(clone_to(x, CUDA1), HOST)
    assert torch.equal(back, x)
    assert back.dtype == dtype


@pytest.mark.parametrize(
    ("x", "strides"),
    [
        (torch.zeros(2, 3).t(), (1, 3)),
        (torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), (60, 1, 15, 3)),
        (torch.zeros(4, 6)[::2, ::3], (2, 1)),
        (torch.zeros(3, 1).expand(3, 4), (4, 1)),
    ],
    ids=["transposed", "channels-last", "sliced", "expanded"],
)
def test_strides_of_dense_tensors_are_kept(
    recording: RecordingDevice, x: torch.Tensor, strides: tuple[int, ...]
) -> None:
    assert clone_to(x, CUDA0).stride() == strides
    assert clone_to(x, HOST).stride() == strides


def test_several_clones_are_independent(recording: RecordingDevice) -> None:
    x = torch.ones(4)
    a, b = clone_to(x, CUDA0), clone_to(x, CUDA0)
    a.zero_()
    assert torch.equal(clone_to(b, HOST), x)


class BrokenCopies(RecordingDevice):
    """A device that fails to copy."""

    def copy_host_to_device(self, destination: torch.Tensor, source: torch.Tensor, index: int) -> None:
        raise RuntimeError("the bus fell off")


def test_memory_is_freed_where_the_copy_fails() -> None:
    with BrokenCopies() as device:
        with pytest.raises(RuntimeError, match="the bus fell off"):
            clone_to(torch.ones(4), CUDA0)
        assert device.live_nbytes() == 0
        assert device.allocations == 1


def test_clone_to_a_missing_device() -> None:
    with RecordingDevice(1), pytest.raises(DeviceError):
        clone_to(torch.ones(4), CUDA1)
