"""The linear kernels, in the interpreter without a GPU, against plain-torch products; outputs are poisoned first."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.linear import configs, launch, reference
from cuda_kernels.testing import assert_close, poisoned, random_int4, random_tensor

Problem = tuple[int, int, int, int]


def problem_id(problem: Problem) -> str:
    return "T{}-N{}-K{}-g{}".format(*problem)


def operands(problem: Problem, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, outputs, columns, group = problem
    weight, scales = random_int4(outputs, columns, group_size=group, device=device)
    return random_tensor(tokens, columns, device=device), weight, scales, random_tensor(tokens, outputs, device=device)


INT8_PROBLEMS = [
    (0, 9, 128, 32),
    (1, 9, 128, 32),
    (1, 5, 4224, 128),
    (2, 17, 320, 64),
    (8, 8, 640, 128),
    (9, 30, 192, 64),
    (17, 20, 128, 32),
    (33, 70, 256, 128),
    (130, 40, 128, 64),
    (514, 5, 128, 64),
]
FLOAT_PROBLEMS = [
    (0, 9, 128, 32),
    (1, 9, 128, 32),
    (1, 6, 4224, 64),
    (2, 40, 320, 64),
    (17, 20, 128, 32),
    (40, 70, 384, 128),
    (130, 24, 128, 64),
]


@pytest.mark.parametrize("problem", INT8_PROBLEMS, ids=problem_id)
@pytest.mark.parametrize("with_residual", [True, False], ids=["residual", "plain"])
def test_int4_linear_int8(problem: Problem, with_residual: bool, device: torch.device) -> None:
    x, weight, scales, residual = operands(problem, device)
    rows = int4.quantize_activation(x, group_size=problem[3])
    given = residual if with_residual else None
    out = poisoned(residual.shape, torch.float32, device)
    launch.int4_linear_int8(*rows, weight, scales, given, torch.float32, out=out)
    exact = int4.dequantize_activation(rows.values, rows.scale).double() @ wide(weight, scales).T
    # For the library the rows are rounded to bfloat16 on a GPU; otherwise the sums of a group are exact.
    tokens, outputs, _, group = problem
    library = configs.prefers_library(tokens, outputs, int8=True) or (
        group == 32 and not configs.prefers_vector(tokens, outputs)
    )
    assert_close(out, exact + residual.double() * with_residual, "int8" if library else "float32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("problem", FLOAT_PROBLEMS, ids=problem_id)
def test_int4_linear(problem: Problem, dtype: torch.dtype, device: torch.device) -> None:
    x, weight, scales, residual = operands(problem, device)
    x, residual = x.to(dtype), residual.to(dtype)
    product = x.double() @ int4.dequantize(weight, scales, dtype=dtype).double().T
    out = poisoned(residual.shape, dtype, device)
    launch.int4_linear(x, weight, scales, residual, None, out=out)
    assert_close(out, product + residual.double(), dtype)
    launch.int4_linear(x, weight, scales, None, None, out=out)
    assert_close(out, product, dtype)


def test_output_dtype_apart_from_the_input(device: torch.device) -> None:
    x, weight, scales, _ = operands((130, 24, 128, 64), device)
    out = poisoned((130, 24), torch.float32, device)
    launch.int4_linear(x.half(), weight, scales, None, torch.float32, out=out)
    assert_close(out, reference.int4_linear(x.half().double(), weight, scales, None, None), torch.float16)


@pytest.mark.parametrize("group", int4.GROUP_SIZES)
def test_dequantized_weight_is_the_reference(group: int, device: torch.device) -> None:
    weight, scales = random_int4(70, 384, group_size=group, device=device)
    out = launch.dequantize_weight(weight, scales, torch.float32)
    assert torch.equal(out, int4.dequantize(weight, scales, dtype=torch.float32))


@pytest.mark.parametrize("group", int4.GROUP_SIZES)
def test_dequantized_rows_are_the_reference(group: int, device: torch.device) -> None:
    rows = int4.quantize_activation(random_tensor(35, 384, device=device), group_size=group)
    want = int4.dequantize_activation(rows.values, rows.scale).to(launch.ROW_DTYPE)
    assert torch.equal(launch.dequantize_rows(rows.values, rows.scale), want)


def test_row_alone_is_the_row_of_a_batch(device: torch.device) -> None:
    x, weight, scales, _ = operands((8, 16, 256, 64), device)
    rows = int4.quantize_activation(x, group_size=64)
    whole, alone = poisoned((8, 16), torch.float32, device), poisoned((1, 16), torch.float32, device)
    launch.int4_linear_int8(*rows, weight, scales, None, torch.float32, out=whole)
    for t in range(8):
        single = (tensor[t : t + 1].contiguous() for tensor in rows)
        launch.int4_linear_int8(*single, weight, scales, None, torch.float32, out=alone)
        assert_close(alone[0], whole[t], "float32")


@pytest.mark.parametrize("tokens", [1, 3, 20, 130], ids=lambda t: f"T{t}")
def test_nothing_is_written_past_the_result(tokens: int, device: torch.device) -> None:
    x, weight, scales, _ = operands((tokens, 21, 128, 64), device)
    rows = int4.quantize_activation(x, group_size=64)
    whole = torch.full((tokens + 4, 21), 7.0, device=device)
    launch.int4_linear_int8(*rows, weight, scales, None, torch.float32, out=whole[2:-2])
    assert whole[:2].eq(7.0).all()
    assert whole[-2:].eq(7.0).all()


def test_neighbouring_rows_do_not_mix(device: torch.device) -> None:
    x, weight, scales, _ = operands((20, 16, 128, 64), device)
    x[3] = float("nan")
    rows = int4.quantize_activation(x, group_size=64)
    out = poisoned((20, 16), torch.float32, device)
    launch.int4_linear_int8(*rows, weight, scales, None, torch.float32, out=out)
    assert bool(out[3].isnan().all())
    assert bool(torch.isfinite(out[torch.arange(20, device=device) != 3]).all())


def wide(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return int4.dequantize(weight, scales, dtype=torch.float64)
