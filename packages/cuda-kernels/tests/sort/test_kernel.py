"""The row kernel of the stable sort against torch: ties, NaN, both zeros, dimensions and directions."""

import pytest
import torch
from cuda_kernels.sort.launch import launch_rows
from cuda_kernels.testing import poisoned

TABLE = torch.tensor([float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1.5, -1.5, 1e-30])


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize(
    ("shape", "dim", "dtype"),
    [
        ((1,), 0, torch.float32),
        ((), 0, torch.int32),
        ((33,), 0, torch.float32),
        ((5, 17), 1, torch.bfloat16),
        ((5, 17), 0, torch.float16),
        ((2, 9, 3), 1, torch.int32),
        ((3, 256), -1, torch.float32),
    ],
    ids=["1-f32", "scalar-i32", "33-f32", "5x17-d1-bf16", "5x17-d0-f16", "2x9x3-d1-i32", "3x256-f32"],
)
def test_equals_torch(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, descending: bool, device: torch.device
) -> None:
    if dtype.is_floating_point:
        keys = TABLE[torch.randint(0, len(TABLE), shape)].to(dtype).to(device)
    else:
        keys = torch.randint(-(2**31), 2**31, shape).to(dtype).to(device) >> torch.randint(0, 31, (1,)).item()
    values, indices = poisoned(shape, dtype, device), poisoned(shape, torch.int64, device)
    launch_rows(keys, dim, descending, values, indices)
    expected = torch.sort(keys.cpu(), dim=dim, descending=descending, stable=True)
    assert torch.equal(indices.cpu(), expected.indices)
    torch.testing.assert_close(values.cpu(), expected.values, rtol=0, atol=0, equal_nan=True)
