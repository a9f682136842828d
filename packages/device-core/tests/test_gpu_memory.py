"""The CUDA allocator, copies and streams on a real device."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from device_core import (
    HOST,
    Device,
    DeviceError,
    DeviceMemoryBuffer,
    MemoryAccessError,
    OutOfMemoryError,
    allocators,
    clone_to,
    copy_ops,
)
from device_core.cuda import CudaAllocator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


CUDA = Device.parse("cuda:0")


Folder = Callable[[str], Path]


@pytest.fixture
def allocator() -> CudaAllocator:
    found = allocators().require(CUDA)
    assert isinstance(found, CudaAllocator)
    return found


@pytest.mark.parametrize("nbytes", [0, 1, 1024, 100_001], ids="n{}".format)
@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
def test_round_trip(allocator: CudaAllocator, nbytes: int, pinned: bool) -> None:
    source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    source = source.pin_memory() if pinned and nbytes else source
    before = source.clone()
    memory = allocator.allocate(nbytes, 0)
    allocator.copy_host_to_device(memory, source, 0)
    source.fill_(7)
    back = torch.empty_like(before)
    allocator.copy_device_to_host(back, memory, 0)
    assert torch.equal(back, before)
    allocator.deallocate(memory, 0)


@pytest.mark.parametrize("alignment", [1, 64, 256], ids="align{}".format)
def test_alignment_is_kept(allocator: CudaAllocator, alignment: int) -> None:
    assert allocator.allocate(10, 0, alignment=alignment).data_ptr() % alignment == 0


@pytest.mark.parametrize(
    ("nbytes", "index", "alignment"),
    [(8, 99, 64), (8, -1, 64), (-1, 0, 64), (8, 0, 0), (8, 0, 48), (8, 0, 512)],
    ids=["no-device", "negative-device", "negative-size", "align0", "align48", "align512"],
)
def test_senseless_allocations_are_refused(allocator: CudaAllocator, nbytes: int, index: int, alignment: int) -> None:
    with pytest.raises(DeviceError):
        allocator.allocate(nbytes, index, alignment=alignment)
    assert torch.cuda.current_device() == 0


def test_out_of_memory_says_how_much(allocator: CudaAllocator) -> None:
    with pytest.raises(OutOfMemoryError, match=f"{2**45:,} bytes") as caught:
        allocator.allocate(2**45, 0)
    assert caught.value.nbytes == 2**45
    assert caught.value.nbytes_free is not None
    assert 0 < caught.value.nbytes_free < 2**45
    assert torch.cuda.current_device() == 0


def test_foreign_memory_is_refused(allocator: CudaAllocator) -> None:
    memory = allocator.allocate(8, 0)
    with pytest.raises(MemoryAccessError):
        allocator.deallocate(torch.zeros(8, dtype=torch.uint8), 0)
    with pytest.raises(MemoryAccessError):
        allocator.copy_host_to_device(memory, memory, 0)
    with pytest.raises(MemoryAccessError):
        allocator.copy_device_to_host(memory, memory, 0)


def test_work_on_a_stream_is_in_order(allocator: CudaAllocator) -> None:
    stream = torch.cuda.Stream()
    memory = allocator.allocate_async(4 * 2**20, 0, stream)
    numbers = memory.view(torch.float32)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        numbers.fill_(3.0)
        back = torch.zeros(2**20)
        allocator.copy_device_to_host(back, numbers, 0)
    assert bool((back == 3.0).all())
    allocator.deallocate_async(memory, 0, stream)


def test_stream_of_another_device_is_refused(allocator: CudaAllocator) -> None:
    with pytest.raises(DeviceError):
        allocator.allocate_async(8, 1, torch.cuda.Stream(0))


def test_views_share_the_buffer() -> None:
    with DeviceMemoryBuffer.create(64, CUDA) as buffer:
        view = buffer.tensor(torch.float32, (2, 2), (2, 1), offset_bytes=16)
        view.fill_(1.0)
        assert view.data_ptr() == buffer.memory.data_ptr() + 16


@pytest.mark.parametrize("sizes", [(), (0, 3), (3, 4), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_clone_and_back(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, sizes).to(dtype)
    there = clone_to(x, CUDA)
    assert there.is_cuda
    assert torch.equal(clone_to(clone_to(there, CUDA), HOST), x)


def test_copy_operators_resize() -> None:
    copy_ops.register()
    x, out = torch.arange(4.0), torch.zeros(8, device="cuda")
    torch.ops.device_copy.h2d.out(x, out=out)
    back = torch.zeros(8)
    torch.ops.device_copy.d2h.out(out, out=back)
    assert torch.equal(back, x)
