"""int4 quantization of one matrix, or one stack of matrices, filled block by block."""

import math

import torch
from cuda_kernels import int4

from qwen35_moe.errors import CheckpointError, ExportError

# Weights quantized at once: their float32 copies stay in a cache.
_CHUNK_ELEMENTS = 1 << 19


class QuantizedMatrix:
    """The packed weights and scales of a matrix `(..., N, K)` in the layout of `cuda_kernels.int4`."""

    def __init__(self, sizes: tuple[int, ...], *, group_size: int, scale_dtype: torch.dtype) -> None:
        self.group_size = group_size
        self.packed = torch.empty(*sizes[:-1], sizes[-1] // 2, dtype=torch.uint8)
        self.scales = torch.empty(*sizes[:-1], sizes[-1] // group_size, dtype=scale_dtype)

    def write(self, row: int, block: torch.Tensor, *, where: str) -> None:
        """Quantize `block` into the entries of the first dimension from `row` on; `where` names it in errors."""
        rows = block.reshape(-1, block.shape[-1])
        first = row * math.prod(block.shape[1:-1])
        packed, scales = self.packed.flatten(0, -2), self.scales.flatten(0, -2)
        step = max(1, _CHUNK_ELEMENTS // rows.shape[1])
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            place = slice(first + start, first + start + len(part))
            try:
                packed[place], scales[place] = int4.quantize_weight(
                    part, group_size=self.group_size, scale_dtype=self.scales.dtype
                )
            except ValueError as error:
                raise CheckpointError(f"tensor {where}: {error}") from error


def check_group_size(name: str, columns: int, group_size: int) -> None:
    """Raise ExportError where `group_size` is not known or does not divide the columns of tensor `name`."""
    if group_size not in int4.GROUP_SIZES:
        raise ExportError(f"group_size: expected one of {int4.GROUP_SIZES}, got {group_size}")
    if columns % group_size:
        raise ExportError(
            f"tensor {name}: expected a multiple of group_size {group_size} columns, got {columns}; "
            f"choose a group size that divides it, or no quantization"
        )
