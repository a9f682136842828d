"""How matrices are stored and multiplied: dense, int4 with float activations, int4 with int8 activations.

T tokens, K inputs of a matrix, N outputs, G = K / group_size.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional

Activations = Literal["float", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4:
    """int4 weights in groups of `group_size` along K, multiplied by `activations` of their own precision or int8."""

    group_size: int
    activations: Activations = "float"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFormat:
    """What a model is made of: the dtype of activations, caches and dense weights, and the form of its matrices."""

    dtype: torch.dtype
    int4: Int4 | None = None

    @property
    def int8_group_size(self) -> int | None:
        """Return the group size of int8 activations, or None where activations stay in `dtype`."""
        return self.int4.group_size if self.int4 is not None and self.int4.activations == "int8" else None


class Int8Rows(NamedTuple):
    """Rows quantized to int8 in the layout of `cuda_kernels.int4`."""

    values: torch.Tensor
    scale: torch.Tensor
    group_sum: torch.Tensor


Rows = torch.Tensor | Int8Rows


class MixedRows(NamedTuple):
    """Rows x (T, K) between a mixer and its output projection.

    With a gate (T, K) they are still to be normed over each run of len(norm_weight) columns and multiplied with
    norm_weight and silu(gate).
    """

    x: torch.Tensor
    gate: torch.Tensor | None = None
    norm_weight: torch.Tensor | None = None
    eps: float = 0.0

    def normed(self) -> torch.Tensor:
        """Return the rows that the projection multiplies."""
        if self.gate is None:
            return self.x
        result: torch.Tensor = torch.ops.cuda_kernels.rms_norm_gated(self.x, self.gate, self.norm_weight, self.eps)
        return result


def parameter(*sizes: int, dtype: torch.dtype) -> nn.Parameter:
    """Return an uninitialized weight that takes no gradient."""
    return nn.Parameter(torch.empty(sizes, dtype=dtype), requires_grad=False)


def quantize_rows(x_TK: torch.Tensor, form: ModelFormat) -> Rows:
    """Return `x` in the form that the matrices of `form` multiply."""
    if form.int8_group_size is None:
        return x_TK
    return Int8Rows(*torch.ops.cuda_kernels.quantize_int8(x_TK, form.int8_group_size))


class Norm(nn.Module):
    """RMS norm with unit offset, whose result is in the form that the next matrix multiplies."""

    def __init__(self, size: int, eps: float, form: ModelFormat) -> None:
        super().__init__()
        self.weight = parameter(size, dtype=form.dtype)
        self.eps = eps
        self.form = form

    def forward(self, x_TK: torch.Tensor) -> Rows:
        """Norm and, where the format says so, quantize."""
        arguments = (x_TK, self.weight, self.eps, True)
        if self.form.int8_group_size is None:
            return torch.ops.cuda_kernels.rms_norm(*arguments)
        return Int8Rows(*torch.ops.cuda_kernels.rms_norm_int8(*arguments, self.form.int8_group_size))


class Linear(nn.Module):
    """y = x Wᵀ (+ residual), in the format's dtype or in `out_dtype`."""

    def __init__(self, inputs: int, outputs: int, form: ModelFormat, *, out_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.form = form
        self.out_dtype = out_dtype or form.dtype
        if form.int4 is None:
            self.weight = parameter(outputs, inputs, dtype=form.dtype)
        else:
            self.weight = parameter(outputs, inputs // 2, dtype=torch.uint8)
            self.scales = parameter(outputs, inputs // form.int4.group_size, dtype=form.dtype)

    def behind(self, norm: Norm, x_TK: torch.Tensor) -> torch.Tensor:
        """Return the product of the normed rows; with int8 activations by one operator, for a few rows one kernel."""
        if self.form.int8_group_size is None:
            result: torch.Tensor = self(norm(x_TK))
            return result
        return torch.ops.cuda_kernels.rms_norm_int4_linear_int8(
            x_TK, norm.weight, norm.eps, self.weight, self.scales, self.out_dtype
        )

    def with_logits(
        self, mixed: MixedRows, residual_TN: torch.Tensor, router: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the product with int8 activations plus the residual, and the logits of a folded router."""
        result: tuple[torch.Tensor, torch.Tensor] = torch.ops.cuda_kernels.int4_linear_router_int8(
            *mixed, self.weight, self.scales, residual_TN, router, self.out_dtype
        )
        return result

    def forward(self, x: Rows, residual_TN: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply rows that are in the form of `Norm` or `quantize_rows`."""
        ops = torch.ops.cuda_kernels
        if isinstance(x, Int8Rows):
            return ops.int4_linear_int8(*x, self.weight, self.scales, residual_TN, self.out_dtype)
        if self.form.int4 is not None:
            return ops.int4_linear(x, self.weight, self.scales, residual_TN, self.out_dtype)
        y_TN = functional.linear(x, self.weight)
        if residual_TN is not None:
            y_TN = residual_TN + y_TN
        return y_TN if self.out_dtype == y_TN.dtype else y_TN.to(self.out_dtype)
