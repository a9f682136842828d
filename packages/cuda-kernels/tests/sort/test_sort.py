"""sort_stable against torch's stable sort: every dtype, dimension, direction, ties, NaN and empty sizes."""

import pytest
import torch
from cuda_kernels.sort.op import DTYPES, sort_stable
from cuda_kernels.testing import check_operator

SHAPES = [(0,), (1,), (7,), (64,), (3, 0), (0, 3), (5, 33), (2, 17, 3), ()]


def keys(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return few distinct keys, so that most are tied; floats have NaN, both zeros and infinities among them."""
    if not dtype.is_floating_point:
        return torch.randint(-3, 4, shape, device=device).to(dtype)
    table = torch.tensor([float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1.5, -1.5, 1e-38])
    return table[torch.randint(0, len(table), shape)].to(dtype).to(device)


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)) or "scalar")
def test_equals_torch(shape: tuple[int, ...], dtype: torch.dtype, descending: bool, device: torch.device) -> None:
    for dim in {0, -1, len(shape) // 2 - 1}:
        x = keys(shape, dtype, device)
        values, indices = sort_stable(x, dim, descending=descending)
        expected = torch.sort(x.cpu(), dim=dim, descending=descending, stable=True)
        assert torch.equal(indices.cpu(), expected.indices)
        torch.testing.assert_close(values.cpu(), expected.values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("x", "dim", "message"),
    [
        (torch.zeros(3, dtype=torch.float64), 0, "keys: expected dtype"),
        (torch.zeros(3, 4).T, 0, "keys: expected a contiguous tensor"),
        (torch.zeros(3), 1, r"dim: expected an index in \[-1, 1\), got 1"),
        (torch.zeros(()), -2, "dim: expected an index"),
    ],
    ids=["dtype", "strides", "dim", "scalar-dim"],
)
def test_refuses(x: torch.Tensor, dim: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sort_stable(x, dim)


@pytest.mark.parametrize("shape", [(0, 3), (4, 9)], ids=["0x3", "4x9"])
def test_operator(shape: tuple[int, ...], device: torch.device) -> None:
    check_operator("sort_stable", torch.randn(shape, device=device), 1, True)


def test_compiles_whole(device: torch.device) -> None:
    def argsort(x: torch.Tensor) -> torch.Tensor:
        return sort_stable(x * 2, 0, descending=True)[1] + 1

    x = torch.randint(0, 5, (9, 4), device=device)
    compiled = torch.compile(argsort, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), argsort(x))
