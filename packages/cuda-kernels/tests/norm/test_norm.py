"""The norm operators against float64, their checks, and both of their registered forms."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.norm.op import rms_norm, rms_norm_gated, rms_norm_int8
from cuda_kernels.testing import assert_close, check_operator, random_tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-6


def normed64(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    x64 = x.double()
    return x64 / (x64.square().mean(-1, keepdim=True) + EPS).sqrt() * gain.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("unit_offset", [True, False], ids=["offset", "plain"])
@pytest.mark.parametrize(
    ("rows", "size"), [(0, 64), (1, 1), (3, 100), (2, 256)], ids=["T0-D64", "T1-D1", "T3-D100", "T2-D256"]
)
def test_rms_norm(rows: int, size: int, unit_offset: bool, dtype: torch.dtype, device: torch.device) -> None:
    x, weight = random_tensor(rows, size, dtype=dtype, device=device), random_tensor(size, dtype=dtype, device=device)
    want = normed64(x, weight.double() + unit_offset)
    assert_close(rms_norm(x, weight, EPS, unit_offset=unit_offset), want, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "heads", "size"), [(1, 4, 16), (3, 2, 100), (0, 2, 32)], ids=["T1-H4-D16", "T3-H2-D100", "T0-H2-D32"]
)
def test_rms_norm_gated(rows: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    x, gate = (random_tensor(rows, heads * size, dtype=dtype, device=device) for _ in range(2))
    weight = random_tensor(size, dtype=torch.float32, device=device)
    normed = normed64(x.unflatten(-1, (heads, size)), weight).flatten(-2)
    assert_close(rms_norm_gated(x, gate, weight, EPS), normed * torch.nn.functional.silu(gate.double()), dtype)


@pytest.mark.parametrize("group_size", int4.GROUP_SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_int8(group_size: int, dtype: torch.dtype, device: torch.device) -> None:
    x, weight = random_tensor(3, 384, dtype=dtype, device=device), random_tensor(384, dtype=dtype, device=device)
    rows = rms_norm_int8(x, weight, EPS, group_size=group_size)
    assert_close(int4.dequantize_activation(rows.values, rows.scale), normed64(x, weight.double() + 1), "int8")


def test_row_alone_is_the_row_of_a_batch(device: torch.device) -> None:
    x, weight = random_tensor(33, 256, device=device), random_tensor(256, device=device)
    whole = rms_norm_int8(x, weight, EPS, group_size=32)
    for t in (0, 17, 32):
        alone = rms_norm_int8(x[t : t + 1], weight, EPS, group_size=32)
        assert all(torch.equal(a, w[t : t + 1]) for a, w in zip(alone, whole, strict=True))


def test_operators_pass_opcheck(device: torch.device) -> None:
    x, gate = (random_tensor(3, 128, device=device) for _ in range(2))
    weight = random_tensor(128, device=device)
    check_operator("rms_norm", x, weight, EPS, True)
    check_operator("rms_norm_gated", x, gate, weight[:32].clone(), EPS)
    check_operator("rms_norm_int8", x, weight, EPS, True, 64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: rms_norm(x[0], w, EPS), r"rms_norm: x: expected shape \(T, D\), got shape \(64,\)"),
        (lambda x, w: rms_norm(x, w[1:], EPS), r"rms_norm: weight: expected shape \(64\), got shape \(63,\)"),
        (lambda x, w: rms_norm(x.int(), w, EPS), "rms_norm: x: expected dtype .*, got torch.int32"),
        (lambda x, w: rms_norm(x.T.contiguous().T, w, EPS), "rms_norm: x: expected a contiguous tensor, got strides"),
        (lambda x, w: rms_norm_gated(x, x, w[:48].clone(), EPS), "rms_norm_gated: weight: expected a divisor of 64"),
        (lambda x, w: rms_norm_int8(x, w, EPS, group_size=48), "rms_norm_int8: group_size: expected one of"),
        (
            lambda x, w: rms_norm_int8(x, w, EPS, group_size=128),
            "rms_norm_int8: group_size: expected a divisor of 64 columns",
        ),
    ],
    ids=["rank", "size", "dtype", "strides", "gate-size", "group", "columns"],
)
def test_wrong_arguments(call, message: str, device: torch.device) -> None:
    with pytest.raises(ValueError, match=message):
        call(random_tensor(3, 64, device=device), random_tensor(64, device=device))
