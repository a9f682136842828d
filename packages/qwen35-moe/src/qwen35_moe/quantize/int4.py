"""int4 quantization of one matrix, or one stack of matrices, filled block by block."""

import torch
from cuda_kernels import int4

from qwen35_moe.errors import CheckpointError, ExportError

# Rows quantized at once: quantization works on float32 copies of them.
_CHUNK_ELEMENTS = 1 << 24


class QuantizedMatrix:
    """The packed weights and scales of a matrix `(..., N, K)` in the layout of `cuda_kernels.int4`."""

    def __init__(self, sizes: tuple[int, ...], *, group_size: int, scale_dtype: torch.dtype) -> None:
        self.group_size = group_size
        self.packed = torch.empty(*sizes[:-1], sizes[-1] // 2, dtype=torch.uint8)
        self.scales = torch.empty(*sizes[:-1], sizes[-1] // group_size, dtype=scale_dtype)

    def write(self, row: int, block: torch.Tensor, *, where: str) -> None:
        """Quantize `block` into the entries of the first dimension from `row` on; `where` names it in errors."""
        step = max(1, _CHUNK_ELEMENTS // max(1, block[0].numel()))
        for start in range(0, len(block), step):
            part = block[start : start + step]
            rows = slice(row + start, row + start + len(part))
            try:
                self.packed[rows], self.scales[rows] = int4.quantize_weight(
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
