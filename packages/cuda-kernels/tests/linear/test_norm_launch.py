"""A norm with the product behind it, in the interpreter without a GPU: one kernel for one row, several for more."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.linear import norm_launch
from cuda_kernels.norm import reference as norm
from cuda_kernels.testing import assert_close, poisoned, random_int4, random_tensor

EPS = 1e-6
Problem = tuple[int, int, int, int]

# Rows, outputs, columns and group: more outputs than a program has, columns that are no power of two, several rows.
PROBLEMS = [(0, 9, 128, 32), (1, 9, 128, 32), (1, 70, 640, 128), (1, 33, 384, 64), (1, 20, 4096, 128), (3, 20, 256, 64)]


def problem_id(problem: Problem) -> str:
    return "T{}-N{}-K{}-g{}".format(*problem)


def product(rows: int4.Int8Rows, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    matrix = int4.dequantize(weight, scales, dtype=torch.float32)
    return int4.dequantize_activation(rows.values, rows.scale).double() @ matrix.double().T


@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_id)
def test_norm_and_product(problem: Problem, device: torch.device) -> None:
    tokens, outputs, columns, group = problem
    x, gain = 3 * random_tensor(tokens, columns, device=device), random_tensor(columns, device=device)
    weight, scales = random_int4(outputs, columns, group_size=group, device=device)
    out = poisoned((tokens, outputs), torch.float32, device)
    norm_launch.rms_norm_int4_linear_int8(x, gain, EPS, weight, scales, torch.float32, out=out)
    rows = norm.rms_norm_int8(x, gain, EPS, True, group)
    # A value between two integers may be rounded either way, which a few units in the last place decide.
    assert_close(out, product(rows, weight, scales), "int8")
    exact = norm.rms_norm(x.double(), gain, EPS, True).double()
    assert_close(out, exact @ int4.dequantize(weight, scales, dtype=torch.float32).double().T, "int8")


@pytest.mark.parametrize("with_residual", [True, False], ids=["residual", "plain"])
@pytest.mark.parametrize("size", [32, 64, 128], ids="D{}".format)
@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_id)
def test_gated_norm_and_product(problem: Problem, size: int, with_residual: bool, device: torch.device) -> None:
    tokens, outputs, columns, group = problem
    x, gate = (2 * random_tensor(tokens, columns, device=device) for _ in range(2))
    gain, residual = random_tensor(size, device=device), random_tensor(tokens, outputs, device=device)
    weight, scales = random_int4(outputs, columns, group_size=group, device=device)
    out = poisoned((tokens, outputs), torch.float32, device)
    given = residual if with_residual else None
    norm_launch.rms_norm_gated_int4_linear_int8(x, gate, gain, EPS, weight, scales, given, torch.float32, out=out)
    rows = int4.quantize_activation(norm.rms_norm_gated(x, gate, gain, EPS), group_size=group)
    assert_close(out, product(rows, weight, scales) + residual.double() * with_residual, "int8")


def test_runs_that_are_no_power_of_two(device: torch.device) -> None:
    x, gate, gain = (random_tensor(*shape, device=device) for shape in ((1, 192), (1, 192), (96,)))
    weight, scales = random_int4(7, 192, group_size=32, device=device)
    out = poisoned((1, 7), torch.float32, device)
    norm_launch.rms_norm_gated_int4_linear_int8(x, gate, gain, EPS, weight, scales, None, torch.float32, out=out)
    rows = int4.quantize_activation(norm.rms_norm_gated(x, gate, gain, EPS), group_size=32)
    assert_close(out, product(rows, weight, scales), "int8")
