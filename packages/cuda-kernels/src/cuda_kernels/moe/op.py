"""Operators of the mixture of experts: declarations and public functions of the fused expert products."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch

from cuda_kernels.checks import FLOATS, check, check_int8_rows, check_scales, check_tensor, checked
from cuda_kernels.int4 import Int8Rows
from cuda_kernels.library import Operator
from cuda_kernels.moe import cases, launch, reference, routed_launch, routing_op
from cuda_kernels.moe.checks import check_choice
from cuda_kernels.moe.layout import DenseExperts, Int4Experts, Routing, routed_experts


def _packed(function: Callable[..., Any], *, experts: type, int8: bool = False) -> Callable[..., Any]:
    """Return `function(rows, routing, experts, *rest)` with the flat arguments of an operator.

    rows: one tensor, or with `int8` the three of Int8Rows. experts: the dataclass whose fields follow the routing.
    """

    def run(*args: Any, **outputs: torch.Tensor) -> Any:
        rows, others = (Int8Rows(*args[:3]), args[3:]) if int8 else (args[0], args[1:])
        weights, ids, *rest = others
        return function(rows, Routing(weights=weights, ids=ids), *_with_table(rest, experts), **outputs)

    return run


def _with_table(args: Sequence[Any], experts: type) -> tuple[Any, ...]:
    """Return `args` with the first of them, a tensor a field, put together as an expert table."""
    names = [field.name for field in fields(experts)]
    return experts(**dict(zip(names, args[: len(names)], strict=True))), *args[len(names) :]


def _check_routing(operator: str, tokens: int, routing: Routing, device: torch.device) -> None:
    weights, ids = routing.weights, routing.ids
    check_tensor(operator, "weights", weights, shape=(tokens, "k"), dtype=torch.float32, device=device)
    check_tensor(operator, "ids", ids, shape=(tokens, weights.shape[1]), dtype=torch.int32, device=device)


def _check_residual(operator: str, residual: torch.Tensor | None, out: torch.Tensor) -> None:
    if residual is not None:
        check_tensor(operator, "residual", residual, shape=out.shape, dtype=out.dtype, device=out.device)


def _check_int4_experts(operator: str, hidden: int, experts: Int4Experts, device: torch.device) -> None:
    gate_up, down = experts.gate_up, experts.down
    check_tensor(operator, "gate_up", gate_up, shape=("E", "2I", hidden // 2), dtype=torch.uint8, device=device)
    count, rows = gate_up.shape[:2]
    width = rows // 2
    check(rows % 2 == 0, operator, "gate_up", "an even number of rows", rows)
    check_tensor(operator, "down", down, shape=(count, hidden, width // 2), dtype=torch.uint8, device=device)
    groups = [
        check_scales(operator, name, scales, rows=(count, outer), columns=columns, device=device)
        for name, scales, outer, columns in (
            ("gate_up_scales", experts.gate_up_scales, rows, hidden),
            ("down_scales", experts.down_scales, hidden, width),
        )
    ]
    check(groups[0] == groups[1], operator, "down_scales", f"groups of {groups[0]}, as gate_up has", groups[1])


def _fake_fused_moe(
    x: torch.Tensor, routing: Routing, experts: DenseExperts, residual: torch.Tensor | None
) -> torch.Tensor:
    operator = "fused_moe"
    check_tensor(operator, "x", x, shape=("T", "H"), dtype=FLOATS)
    _check_routing(operator, x.shape[0], routing, x.device)
    gate_up, hidden = experts.gate_up, x.shape[1]
    check_tensor(operator, "gate_up", gate_up, shape=("E", "2I", hidden), dtype=x.dtype, device=x.device)
    count, rows = gate_up.shape[:2]
    check(rows % 2 == 0, operator, "gate_up", "an even number of rows", rows)
    check_tensor(operator, "down", experts.down, shape=(count, hidden, rows // 2), dtype=x.dtype, device=x.device)
    _check_residual(operator, residual, x)
    return torch.empty_like(x)


def _fake_fused_moe_int4(
    x: torch.Tensor, routing: Routing, experts: Int4Experts, residual: torch.Tensor | None
) -> torch.Tensor:
    operator = "fused_moe_int4"
    check_tensor(operator, "x", x, shape=("T", "H"), dtype=FLOATS)
    _check_routing(operator, x.shape[0], routing, x.device)
    _check_int4_experts(operator, x.shape[1], experts, x.device)
    _check_residual(operator, residual, x)
    return torch.empty_like(x)


def _fake_fused_moe_int4_int8(
    rows: Int8Rows, routing: Routing, experts: Int4Experts, residual: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    operator, values = "fused_moe_int4_int8", rows.values
    check_tensor(operator, "values", values, shape=("T", 2, "H/2"), dtype=torch.int8)
    tokens, hidden, device = values.shape[0], 2 * values.shape[2], values.device
    _check_int4_experts(operator, hidden, experts, device)
    groups = (tokens, experts.gate_up_scales.shape[2])
    check_int8_rows(operator, rows.scale, rows.group_sum, shape=groups, device=device)
    _check_routing(operator, tokens, routing, device)
    check(out_dtype in FLOATS, operator, "out_dtype", f"one of {FLOATS}", out_dtype)
    out = values.new_empty((tokens, hidden), dtype=out_dtype)
    _check_residual(operator, residual, out)
    return out


def _with_experts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(x, norm_weight, eps, logits, experts, *rest)` with the flat arguments of an operator."""

    def run(
        x: torch.Tensor, norm_weight: torch.Tensor, eps: float, logits: torch.Tensor, *rest: Any, **out: Any
    ) -> Any:
        return function(x, norm_weight, eps, logits, *_with_table(rest, Int4Experts), **out)

    return run


def _fake_routed_moe_int4_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    logits: torch.Tensor,
    experts: Int4Experts,
    top_k: int,
    shared_experts: int,
) -> torch.Tensor:
    operator = "routed_moe_int4_int8"
    check_tensor(operator, "x", x, shape=("T", "H"), dtype=FLOATS)
    check_tensor(operator, "norm_weight", norm_weight, shape=(x.shape[1],), dtype=FLOATS, device=x.device)
    check_tensor(operator, "logits", logits, shape=(x.shape[0], "E"), dtype=torch.float32, device=x.device)
    _check_int4_experts(operator, x.shape[1], experts, x.device)
    check_choice(operator, logits.shape[1], top_k, shared_experts)
    have, needed = experts.gate_up.shape[0], routed_experts(logits.shape[1], shared_experts) + shared_experts
    check(have == needed, operator, "gate_up", f"{needed} experts, routed and shared", have)
    return torch.empty_like(x)


_INT4_EXPERTS = "Tensor gate_up, Tensor gate_up_scales, Tensor down, Tensor down_scales, Tensor? residual"

COMPILE_CASES = cases.COMPILE_CASES

OPERATORS = (
    *routing_op.OPERATORS,
    Operator(
        schema=(
            "routed_moe_int4_int8(Tensor x, Tensor norm_weight, float eps, Tensor logits, Tensor gate_up, "
            "Tensor gate_up_scales, Tensor down, Tensor down_scales, int top_k, int shared_experts) -> Tensor"
        ),
        reference=_with_experts(checked(_fake_routed_moe_int4_int8, reference.routed_moe_int4_int8)),
        fake=_with_experts(_fake_routed_moe_int4_int8),
        cuda=_with_experts(routed_launch.routed_moe_int4_int8),
    ),
    Operator(
        schema=(
            "fused_moe(Tensor x, Tensor weights, Tensor ids, Tensor gate_up, Tensor down, Tensor? residual) -> Tensor"
        ),
        reference=_packed(checked(_fake_fused_moe, reference.fused_moe), experts=DenseExperts),
        fake=_packed(_fake_fused_moe, experts=DenseExperts),
        cuda=_packed(launch.fused_moe, experts=DenseExperts),
    ),
    Operator(
        schema=f"fused_moe_int4(Tensor x, Tensor weights, Tensor ids, {_INT4_EXPERTS}) -> Tensor",
        reference=_packed(checked(_fake_fused_moe_int4, reference.fused_moe_int4), experts=Int4Experts),
        fake=_packed(_fake_fused_moe_int4, experts=Int4Experts),
        cuda=_packed(launch.fused_moe_int4, experts=Int4Experts),
    ),
    Operator(
        schema=(
            "fused_moe_int4_int8(Tensor values, Tensor scale, Tensor group_sum, Tensor weights, Tensor ids, "
            f"{_INT4_EXPERTS}, ScalarType out_dtype) -> Tensor"
        ),
        reference=_packed(
            checked(_fake_fused_moe_int4_int8, reference.fused_moe_int4_int8), experts=Int4Experts, int8=True
        ),
        fake=_packed(_fake_fused_moe_int4_int8, experts=Int4Experts, int8=True),
        cuda=_packed(launch.fused_moe_int4_int8, experts=Int4Experts, int8=True),
    ),
)


def fused_moe(
    x: torch.Tensor,
    routing: Routing,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return sum over each token's slots of weight · down(silu(gate(x)) · up(x)), plus the residual.

    x: (T, H) float32, bfloat16 or float16, contiguous; the result has its shape and dtype.
    routing: weights and ids (T, k); an id outside [0, E) contributes nothing.
    gate_up: (E, 2I, H) of x's dtype, gate rows first; down: (E, H, I) of x's dtype; residual: like x.

    Raises ValueError on wrong shape, dtype, device or strides; on a GPU H and I must be multiples of 16.
    Source: Shazeer et al., 2017, arXiv:1701.06538.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.fused_moe(x, routing.weights, routing.ids, gate_up, down, residual)
    return result


def fused_moe_int4(
    x: torch.Tensor, routing: Routing, experts: Int4Experts, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `fused_moe` with int4 experts, dequantized to x's dtype as they are used.

    Raises ValueError on wrong shape, dtype, device or strides, and where the two projections differ in group size.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.fused_moe_int4(
        x, routing.weights, routing.ids, *_tensors(experts), residual
    )
    return result


def fused_moe_int4_int8(
    rows: Int8Rows,
    routing: Routing,
    experts: Int4Experts,
    residual: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Return `fused_moe` of int8 rows with int4 experts of the same group size, (T, H) in `out_dtype`.

    On a GPU the product of gate and up is quantized to int8 again before the down projection.
    Raises as `fused_moe_int4`.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.fused_moe_int4_int8(
        *rows, routing.weights, routing.ids, *_tensors(experts), residual, out_dtype
    )
    return result


def routed_moe_int4_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    logits: torch.Tensor,
    experts: Int4Experts,
    *,
    top_k: int,
    shared_experts: int = 0,
) -> torch.Tensor:
    """Return x plus `fused_moe_int4_int8` of its norm, (T, H) in x's dtype, routed by logits made without that norm.

    x: (T, H) float32, bfloat16 or float16, contiguous; norm_weight: (H,), unit offset.
    logits: (T, E) float32, (T, E + 1) with shared experts: the router's product with x · (1 + norm_weight), such as
        `int4_linear_router_int8` makes. The norm divides them by the rms of x, which is done here.
    experts: the routed and then the shared ones; top_k and shared_experts as for `moe_router`.

    Raises ValueError on wrong shape, dtype, device or strides, and on numbers of experts that do not fit.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.routed_moe_int4_int8(
        x, norm_weight, eps, logits, *_tensors(experts), top_k, shared_experts
    )
    return result


def _tensors(experts: Int4Experts) -> tuple[torch.Tensor, ...]:
    return experts.gate_up, experts.gate_up_scales, experts.down, experts.down_scales
