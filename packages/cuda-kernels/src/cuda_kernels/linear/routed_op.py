"""The operator of a product with its residual and of the logits of the router behind it."""

import torch

from cuda_kernels import int4
from cuda_kernels.checks import FLOATS, check, check_gated_norm, check_tensor, checked
from cuda_kernels.library import Operator
from cuda_kernels.linear import routed_launch
from cuda_kernels.linear.checks import check_weight, new_output
from cuda_kernels.linear.reference import int4_linear_int8
from cuda_kernels.norm.reference import rms_norm_gated

_NAME = "int4_linear_router_int8"


def _fake(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor,
    router: torch.Tensor,
    out_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_tensor(_NAME, "x", x, shape=("T", "K"), dtype=FLOATS)
    check((gate is None) == (norm_weight is None), _NAME, "gate", "it and norm_weight, or neither", "one of them")
    if gate is not None and norm_weight is not None:
        check_gated_norm(_NAME, x, gate, norm_weight, argument="norm_weight")
    check_weight(_NAME, weight, scales, x.shape[1], x.device)
    columns = weight.shape[0] + x.shape[1]
    check_tensor(_NAME, "router", router, shape=("E", columns), dtype=FLOATS, device=x.device)
    out = new_output(_NAME, x, weight, residual, out_dtype)
    return out, x.new_empty((x.shape[0], router.shape[0]), dtype=torch.float32)


def _reference(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor,
    router: torch.Tensor,
    out_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = x.to(torch.float32)
    if gate is not None and norm_weight is not None:
        rows = rms_norm_gated(rows, gate, norm_weight, eps)
    quantized = int4.quantize_activation(rows, group_size=x.shape[1] // scales.shape[1])
    logits = torch.cat((residual.to(torch.float32), rows), 1) @ router.to(torch.float32).T
    return int4_linear_int8(*quantized, weight, scales, residual, out_dtype), logits


OPERATORS = (
    Operator(
        schema=(
            f"{_NAME}(Tensor x, Tensor? gate, Tensor? norm_weight, float eps, Tensor weight, Tensor scales, "
            "Tensor residual, Tensor router, ScalarType out_dtype) -> (Tensor out, Tensor logits)"
        ),
        reference=checked(_fake, _reference),
        fake=_fake,
        cuda=routed_launch.int4_linear_router_int8,
    ),
)


def int4_linear_router_int8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor,
    router: torch.Tensor,
    *,
    out_dtype: torch.dtype,
    gate: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return residual + x' · weightᵀ (T, N), and the logits (T, E) float32 of the router behind it.

    x: (T, K) float32, bfloat16 or float16, contiguous; x' is x, or with gate (T, K) and norm_weight (D,) what
        `rms_norm_gated` makes of it. It is quantized to int8 in the groups of `scales` for the product, not for the
        logits.
    weight, scales: (N, K) as for `int4_linear`; residual: (T, N) of out_dtype.
    router: (E, N + K): R and then R · weight, where the logits are to be R · (residual + x' · weightᵀ).

    Raises ValueError on wrong shape, dtype, device or strides.
    """
    result: tuple[torch.Tensor, torch.Tensor] = torch.ops.cuda_kernels.int4_linear_router_int8(
        x, gate, norm_weight, eps, weight, scales, residual, router, out_dtype
    )
    return result
