"""The stable sort on a GPU: sizes about powers of two, the library's part, graphs and compilation."""

import pytest
import torch
from cuda_kernels.sort.op import DTYPES, sort_stable

pytestmark = pytest.mark.gpu

LENGTHS = (1, 2, 3, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4096, 12_069, 248_320)


@pytest.mark.parametrize("length", LENGTHS, ids="L{}".format)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_lengths(length: int, dtype: torch.dtype) -> None:
    keys = torch.randint(-9, 9, (3, length)).to(dtype)
    if dtype.is_floating_point:
        keys = torch.where(torch.rand(3, length) < 0.1, float("nan"), keys)
    for descending in (False, True):
        values, indices = sort_stable(keys.cuda(), 1, descending=descending)
        expected = torch.sort(keys, dim=1, descending=descending, stable=True)
        assert torch.equal(indices.cpu(), expected.indices)
        torch.testing.assert_close(values.cpu(), expected.values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("length", [100, 5000], ids="L{}".format)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["float32", "int64"])
def test_graph_replays(length: int, dtype: torch.dtype) -> None:
    keys = torch.randint(-99, 99, (4, length), device="cuda").to(dtype)
    sort_stable(keys, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, indices = sort_stable(keys, 1)
    held = []
    for step in range(100):
        held.append(torch.full((1 << 16,), -1, device="cuda"))
        if step % 3 == 0:
            held.clear()
        keys.copy_(torch.randint(-99, 99, (4, length), device="cuda"))
        graph.replay()
        expected = torch.sort(keys, dim=1, stable=True)
        assert torch.equal(indices, expected.indices), f"replay {step}"
        assert torch.equal(values, expected.values), f"replay {step}"


def test_compiles_whole() -> None:
    compiled = torch.compile(lambda x: sort_stable(x * 2, 0, descending=True)[1] + 1, fullgraph=True)
    x = torch.randint(0, 5, (90, 4), device="cuda")
    assert torch.equal(compiled(x), torch.sort(x, dim=0, descending=True, stable=True).indices + 1)
