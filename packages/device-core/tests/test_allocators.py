"""Allocators, their registry, and buffers that own memory."""

import contextlib
import copy
import gc
import pickle

import pytest
import torch
from device_core import (
    HOST,
    ClosedError,
    Device,
    DeviceAllocatorRegistry,
    DeviceError,
    DeviceMemoryBuffer,
    DeviceType,
    MemoryAccessError,
    OutOfMemoryError,
    RegistrationError,
    allocators,
)
from device_core.host import HostAllocator
from device_core.testing import POISON, DeviceTensor, RecordingDevice, Transfer

CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")


def test_registry_has_one_allocator_a_type() -> None:
    registry = DeviceAllocatorRegistry()
    assert registry.get(DeviceType.CPU) is None
    host = HostAllocator()
    registry.register(host)
    assert registry.get(DeviceType.CPU) is host
    with pytest.raises(RegistrationError, match="already registered"):
        registry.register(HostAllocator())
    with pytest.raises(RegistrationError, match="expected a DeviceAllocator"):
        registry.register(None)  # type: ignore[arg-type]  # what the test is about


def test_registry_of_the_process() -> None:
    assert allocators() is allocators()
    assert isinstance(allocators().get(DeviceType.CPU), HostAllocator)


def test_replacement_ends_with_its_block() -> None:
    before = allocators().get(DeviceType.CUDA)
    device = RecordingDevice()
    with contextlib.suppress(KeyError), device:
        assert allocators().get(DeviceType.CUDA) is device
        raise KeyError
    assert allocators().get(DeviceType.CUDA) is before


@pytest.mark.parametrize(
    ("nbytes", "index", "alignment"),
    [(8, 2, 64), (8, -1, 64), (-1, 0, 64), (8, 0, 0), (8, 0, 48), (8, 0, 512)],
    ids=["no-device", "negative-device", "negative-size", "align0", "align48", "align512"],
)
def test_senseless_allocations_are_refused(nbytes: int, index: int, alignment: int) -> None:
    for allocator in (RecordingDevice(2), HostAllocator()):
        with pytest.raises(DeviceError):
            allocator.allocate(nbytes, index, alignment=alignment)


@pytest.mark.parametrize("alignment", [1, 8, 64, 128, 256], ids="align{}".format)
@pytest.mark.parametrize("nbytes", [0, 1, 1000], ids="n{}".format)
def test_host_memory_is_aligned(alignment: int, nbytes: int) -> None:
    memory = HostAllocator().allocate(nbytes, 0, alignment=alignment)
    assert memory.shape == (nbytes,)
    assert memory.data_ptr() % alignment == 0


def test_buffer_frees_once(recording: RecordingDevice) -> None:
    buffer = DeviceMemoryBuffer.create(100, CUDA1, alignment=256)
    assert (recording.allocations, recording.live_nbytes(1), recording.live_nbytes(0)) == (1, 100, 0)
    buffer.close()
    buffer.close()
    assert (recording.deallocations, recording.live_nbytes()) == (1, 0)
    assert buffer.closed
    with pytest.raises(ClosedError, match="100 bytes on cuda:1"):
        _ = buffer.memory


def test_buffer_is_freed_when_forgotten(recording: RecordingDevice) -> None:
    DeviceMemoryBuffer.create(100, CUDA0)
    gc.collect()
    assert recording.live_nbytes() == 0


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__)
def test_buffer_is_not_copied(recording: RecordingDevice, duplicate: object) -> None:
    with DeviceMemoryBuffer.create(8, CUDA0) as buffer, pytest.raises(TypeError, match="owns its memory"):
        duplicate(buffer)  # type: ignore[operator]


def test_buffer_on_a_missing_device() -> None:
    with RecordingDevice(1), pytest.raises(DeviceError, match="there are 1 devices"):
        DeviceMemoryBuffer.create(8, CUDA1)


def test_tensors_over_a_buffer_share_its_bytes(recording: RecordingDevice) -> None:
    with DeviceMemoryBuffer.create(64, CUDA0) as buffer:
        view = buffer.tensor(torch.int32, (2, 3), (4, 1), offset_bytes=8)
        assert isinstance(view, DeviceTensor)
        assert isinstance(buffer.memory, DeviceTensor)
        view.fill_(5)
        assert buffer.memory.host[8:20].view(torch.int32).tolist() == [5, 5, 5]
        assert buffer.memory.host[20:24].tolist() == [POISON] * 4
        assert buffer.memory.host[24:36].view(torch.int32).tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("sizes", "strides", "offset"),
    [((17,), (1,), 0), ((16,), (1,), 4), ((2,), (16,), 0), ((1,), (1,), -4), ((1,), (1,), 2)],
    ids=["long", "shifted", "strided", "negative", "misaligned"],
)
def test_tensors_stay_within_a_buffer(sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
    with DeviceMemoryBuffer.create(64, HOST) as buffer, pytest.raises(ValueError, match="expected them inside"):
        buffer.tensor(torch.float32, sizes, strides, offset_bytes=offset)


def test_empty_tensors_fit_anywhere() -> None:
    with DeviceMemoryBuffer.create(0, HOST) as buffer:
        assert buffer.tensor(torch.float32, (3, 0), (0, 1)).shape == (3, 0)


def test_fake_memory_is_poisoned() -> None:
    memory = RecordingDevice().allocate(16, 0)
    assert isinstance(memory, DeviceTensor)
    assert memory.host.view(torch.float32).isnan().all()


def test_fake_device_has_a_size() -> None:
    device = RecordingDevice(2, capacity_nbytes=100)
    device.allocate(60, 0)
    device.allocate(60, 1)
    with pytest.raises(OutOfMemoryError, match="cuda:0: asked for 60 bytes, free: 40"):
        device.allocate(60, 0)


def test_leaks_are_found() -> None:
    with (
        pytest.raises(MemoryAccessError, match="1 allocations leaked: 24 bytes on cuda:1"),
        RecordingDevice() as device,
    ):
        device.allocate(24, 1)


def test_wrong_frees_are_found() -> None:
    device = RecordingDevice()
    memory = device.allocate(16, 0)
    for wrong, index, message in [
        (memory, 1, "expected memory of cuda:1"),
        (memory[:8], 0, "a tensor over it"),
        (torch.zeros(16, dtype=torch.uint8), 0, "of this allocator"),
        (RecordingDevice().allocate(16, 0), 0, "of this allocator"),
    ]:
        with pytest.raises(MemoryAccessError, match=message):
            device.deallocate(wrong, index)
    device.deallocate(memory, 0)
    with pytest.raises(MemoryAccessError, match="freed before"):
        device.deallocate(memory, 0)
    device.check_leaks()


def test_wrong_copies_are_found() -> None:
    device, host = RecordingDevice(), torch.zeros(16, dtype=torch.uint8)
    memory = device.allocate(16, 0)
    for target, source, index in [
        (memory, host, 1),
        (memory, memory, 0),
        (host, host, 0),
        (memory, host[:8], 0),
        (memory, host.view(torch.int8), 0),
        (RecordingDevice().allocate(16, 0), host, 0),
    ]:
        with pytest.raises(MemoryAccessError):
            device.copy_host_to_device(target, source, index)
    assert device.transfers == []
    device.copy_host_to_device(memory, host, 0)
    device.copy_device_to_host(host, memory, 0)
    assert device.transfers == [
        Transfer(direction="h2d", index=0, nbytes=16),
        Transfer(direction="d2h", index=0, nbytes=16),
    ]
    device.forget()
    assert device.transferred("h2d") == (0, 0)


READS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).all()),
    "float": lambda x: float(x[0]),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "numpy": lambda x: x.numpy(),
    "tolist": lambda x: x.tolist(),
    "copy-to-host": lambda x: torch.zeros(4).copy_(x),
    "copy-from-host": lambda x: x.copy_(torch.zeros(4)),
    "mix-with-host": lambda x: x + torch.zeros(4),
    "out-on-host": lambda x: torch.ops.aten.neg.out(x, out=torch.zeros(4)),
    "mix-with-other": lambda x: x + x.owner.allocate(4, 1),
    "other-device": lambda x: x.to("cuda:1"),
    "reshape-in-place": lambda x: (x + 0).unsqueeze_(0),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_access_from_the_host_is_an_error(read: object) -> None:
    x = RecordingDevice().allocate(16, 0).view(torch.float32)
    with pytest.raises((MemoryAccessError, RuntimeError)):
        read(x)  # type: ignore[operator]


def test_operators_run_on_the_fake_device() -> None:
    device = RecordingDevice()
    x = device.allocate(16, 1).view(torch.float32)
    x.fill_(2.0)
    y = torch.ops.aten.mul.out(x, x, out=x)
    z = (y + 1).to(torch.int64).view(2, 2).t()
    assert y is x
    assert (z.device, z.stride(), z.dtype) == (torch.device("cuda:1"), (1, 2), torch.int64)
    assert isinstance(z, DeviceTensor)
    assert z.host.tolist() == [[5, 5], [5, 5]]
    assert {run.index for run in device.operators} == {1}
