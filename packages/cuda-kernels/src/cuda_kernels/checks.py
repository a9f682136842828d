"""Argument checks of the operators, with one message format: `operator: argument: expected …, got …`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cuda_kernels.int4 import GROUP_SIZES

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check(condition: bool, operator: str, argument: str, expected: str, given: object) -> None:
    """Raise ValueError `operator: argument: expected …, got …` unless `condition` holds."""
    if not condition:
        raise ValueError(f"{operator}: {argument}: expected {expected}, got {given}")


def check_tensor(
    operator: str,
    argument: str,
    tensor: torch.Tensor,
    *,
    shape: Sequence[int | str],
    dtype: torch.dtype | Sequence[torch.dtype],
    device: torch.device | None = None,
) -> None:
    """Check rank, sizes, dtype, contiguity and device of one argument.

    shape: expected sizes; a string names a size that may be anything (`"T"`).
    device: where the tensor must live, usually the device of the operator's first tensor.
    """
    # A message is only put together where it is raised: this runs for every argument of every call.
    sizes = tensor.shape
    if len(sizes) != len(shape) or any(
        have != want and not isinstance(want, str) for have, want in zip(sizes, shape, strict=True)
    ):
        wanted = "(" + ", ".join(map(str, shape)) + ")"
        check(False, operator, argument, f"shape {wanted}", f"shape {tuple(sizes)}")
    dtypes = (dtype,) if isinstance(dtype, torch.dtype) else dtype
    if tensor.dtype not in dtypes:
        check(False, operator, argument, f"dtype {' or '.join(map(str, dtypes))}", tensor.dtype)
    if not tensor.is_contiguous():
        check(False, operator, argument, "a contiguous tensor", f"strides {tensor.stride()}")
    if device is not None and tensor.device != device:
        check(False, operator, argument, f"device {device}", tensor.device)


def check_scales(
    operator: str, argument: str, scales: torch.Tensor, *, rows: Sequence[int], columns: int, device: torch.device
) -> int:
    """Check the scales `(*rows, columns / group)` of an int4 weight and return the group size."""
    check_tensor(operator, argument, scales, shape=(*rows, "G"), dtype=FLOATS, device=device)
    groups = scales.shape[-1]
    fits = groups > 0 and columns % groups == 0 and columns // groups in GROUP_SIZES
    check(fits, operator, argument, f"{columns} columns in groups of {GROUP_SIZES}", f"{groups} groups")
    return columns // groups


def check_int8_rows(
    operator: str, scale: torch.Tensor, group_sum: torch.Tensor, *, shape: tuple[int, int], device: torch.device
) -> None:
    """Check what belongs to the values of int8 rows, `shape` being (T, K / group)."""
    for argument, tensor in (("scale", scale), ("group_sum", group_sum)):
        check_tensor(operator, argument, tensor, shape=shape, dtype=torch.float32, device=device)


def check_gated_norm(
    operator: str, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, argument: str
) -> None:
    """Check the gate of x (T, H·D), and the norm's weight (D,), which the operator calls `argument`."""
    check_tensor(operator, "gate", gate, shape=x.shape, dtype=FLOATS, device=x.device)
    check_tensor(operator, argument, weight, shape=("D",), dtype=FLOATS, device=x.device)
    size = weight.shape[0]
    check(size > 0 and x.shape[1] % size == 0, operator, argument, f"a divisor of {x.shape[1]} elements", size)


def new_int8_rows(
    operator: str, x: torch.Tensor, columns: int, group_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Check `group_size` and return uninitialized (values, scale, group_sum), a row of `columns` for each of x."""
    check(group_size in GROUP_SIZES, operator, "group_size", f"one of {GROUP_SIZES}", group_size)
    check(columns % group_size == 0, operator, "group_size", f"a divisor of {columns} columns", group_size)
    rows, groups = x.shape[0], columns // group_size
    scale = x.new_empty((rows, groups), dtype=torch.float32)
    return x.new_empty((rows, 2, columns // 2), dtype=torch.int8), scale, torch.empty_like(scale)


def checked(checks: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` preceded by `checks` on its arguments, without the outputs, which are passed by keyword.

    So the fake of an operator, which checks, serves its reference too, and a launch that nothing has checked for.
    """

    def run(*args: Any, **outputs: torch.Tensor) -> Any:
        checks(*args)
        return function(*args, **outputs)

    return run
