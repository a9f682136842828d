"""The norm kernels, in the interpreter without a GPU, against the plain-torch norms; outputs are poisoned first."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.norm import launch, reference
from cuda_kernels.testing import assert_close, poisoned, random_tensor

EPS = 1e-6


@pytest.mark.parametrize("unit_offset", [True, False], ids=["offset", "plain"])
@pytest.mark.parametrize(
    ("rows", "size", "dtype"),
    [(0, 64, torch.float32), (1, 1, torch.float32), (3, 100, torch.float32), (2, 2048, torch.float16)],
    ids=["T0-D64", "T1-D1", "T3-D100", "T2-D2048-f16"],
)
def test_rms_norm(rows: int, size: int, dtype: torch.dtype, unit_offset: bool, device: torch.device) -> None:
    x, weight = random_tensor(rows, size, dtype=dtype, device=device), random_tensor(size, dtype=dtype, device=device)
    out = poisoned(x.shape, dtype, device)
    launch.rms_norm(x, weight, EPS, unit_offset, out=out)
    assert_close(out, reference.rms_norm(x.double(), weight.double(), EPS, unit_offset), dtype)


@pytest.mark.parametrize("shape", [(0, 2, 32), (1, 1, 100), (3, 3, 128)], ids=lambda s: "T{}-H{}-D{}".format(*s))
def test_rms_norm_gated(shape: tuple[int, int, int], device: torch.device) -> None:
    rows, heads, size = shape
    x, gate = (random_tensor(rows, heads * size, device=device) for _ in range(2))
    weight = random_tensor(size, device=device)
    out = poisoned(x.shape, x.dtype, device)
    launch.rms_norm_gated(x, gate, weight, EPS, out=out)
    assert_close(out, reference.rms_norm_gated(x, gate, weight, EPS), x.dtype)


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "quantize"])
@pytest.mark.parametrize("group_size", int4.GROUP_SIZES)
@pytest.mark.parametrize("shape", [(0, 128), (1, 128), (3, 384)], ids=lambda s: "T{}-D{}".format(*s))
def test_rms_norm_int8(shape: tuple[int, int], group_size: int, norm: bool, device: torch.device) -> None:
    x, weight = random_tensor(*shape, device=device), random_tensor(shape[1], device=device)
    x[:1, :group_size] = 0.0
    if norm:
        want = reference.rms_norm_int8(x, weight, EPS, True, group_size)
    else:
        want = int4.quantize_activation(x, group_size=group_size)
    values, scale, group_sum = (poisoned(t.shape, t.dtype, device) for t in want)
    given = weight if norm else None
    launch.rms_norm_int8(x, given, EPS, True, group_size, values=values, scale=scale, group_sum=group_sum)
    torch.testing.assert_close(scale, want.scale, rtol=1e-5, atol=0.0)
    # A value that lies halfway between two integers may go to either, by the rounding of what precedes it.
    assert all(int(d) <= 1 for d in (values.int() - want.values.int()).abs().unique())
    back = int4.dequantize_activation(values, scale)
    assert_close(back, int4.dequantize_activation(want.values, want.scale), "int8")
    assert_close(group_sum, back.unflatten(-1, (-1, group_size)).sum(-1), torch.bfloat16)
