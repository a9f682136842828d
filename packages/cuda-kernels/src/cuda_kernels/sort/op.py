"""Operator of the sort family: declaration and public function."""

import torch

from cuda_kernels.checks import check, checked
from cuda_kernels.library import Operator
from cuda_kernels.sort import cases, launch, reference

DTYPES = (torch.int64, torch.int32, torch.float32, torch.bfloat16, torch.float16)


def _fake_sort_stable(keys: torch.Tensor, dim: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    check(keys.dtype in DTYPES, "sort_stable", "keys", f"dtype {' or '.join(map(str, DTYPES))}", keys.dtype)
    check(keys.is_contiguous(), "sort_stable", "keys", "a contiguous tensor", f"strides {keys.stride()}")
    rank = max(keys.dim(), 1)
    check(-rank <= dim < rank, "sort_stable", "dim", f"an index in [{-rank}, {rank})", dim)
    return torch.empty_like(keys), torch.empty_like(keys, dtype=torch.int64)


COMPILE_CASES = cases.COMPILE_CASES

OPERATORS = (
    Operator(
        schema="sort_stable(Tensor keys, int dim, bool descending) -> (Tensor values, Tensor indices)",
        reference=checked(_fake_sort_stable, reference.sort_stable),
        cuda=launch.sort_stable,
        fake=_fake_sort_stable,
    ),
)


def sort_stable(keys: torch.Tensor, dim: int = -1, *, descending: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort along `dim` and return (values, int64 indices); equal keys stay in input order, also descending.

    keys: any shape, 0-dimensional and empty included, int64, int32, float32, bfloat16 or float16, contiguous.
    NaN is larger than every number: last ascending, first descending. -0.0 equals 0.0.

    Raises ValueError on another dtype, on strides and on a `dim` out of range.
    """
    result: tuple[torch.Tensor, torch.Tensor] = torch.ops.cuda_kernels.sort_stable(keys, dim, descending)
    return result
