"""The CUDA side of the stable sort: our kernel for short rows, the library's radix sort for the rest."""

import torch
import triton

from cuda_kernels.primitives import has_dependent_launch
from cuda_kernels.sort.configs import PROGRAM_KEYS, kernel_sorts, warps
from cuda_kernels.sort.kernels import sort_rows


def sort_stable(keys: torch.Tensor, dim: int, descending: bool, *, values: torch.Tensor, indices: torch.Tensor) -> None:
    """Fill `values` and `indices`; nothing waits for the device, so both ways can be captured in a graph."""
    if keys.numel() == 0:
        return
    length = keys.shape[dim] if keys.dim() else 1
    if keys.dtype == torch.int64 or not kernel_sorts(keys.numel() // length, length):
        torch.sort(keys, dim=dim, descending=descending, stable=True, out=(values, indices))
        return
    launch_rows(keys, dim, descending, values, indices)


def launch_rows(keys: torch.Tensor, dim: int, descending: bool, values: torch.Tensor, indices: torch.Tensor) -> None:
    """Sort with our kernel: keys of at most 32 bits, rows that fit a program."""
    length = keys.shape[dim] if keys.dim() else 1
    inner = 1
    for size in keys.shape[dim % keys.dim() + 1 :] if keys.dim() else ():
        inner *= size
    rows, padded = keys.numel() // length, triton.next_power_of_2(length)
    block = max(1, min(PROGRAM_KEYS // padded, triton.next_power_of_2(rows)))
    pdl = has_dependent_launch(keys.device)
    sort_rows[(triton.cdiv(rows, block),)](
        p_keys=keys,
        p_values=values,
        p_indices=indices,
        rows=rows,
        inner=inner,
        LENGTH=length,
        PADDED=padded,
        ROWS=block,
        DESCENDING=descending,
        PDL=pdl,
        launch_pdl=pdl,
        num_warps=warps(block * padded),
    )
