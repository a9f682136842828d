"""Argument checks of the operators, with one message format: `operator: argument: expected …, got …`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


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


def checked(checks: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` preceded by `checks` on the same arguments: a fake serves as the checks of its reference."""

    def run(*args: Any, **kwargs: Any) -> Any:
        checks(*args, **kwargs)
        return function(*args, **kwargs)

    return run
