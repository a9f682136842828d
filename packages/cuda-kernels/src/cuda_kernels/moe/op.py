"""Operators of the mixture of experts: declarations and public functions of the fused expert products."""

import torch

from cuda_kernels.checks import check, check_tensor, checked
from cuda_kernels.int4 import GROUP_SIZES, Int8Rows
from cuda_kernels.library import Operator
from cuda_kernels.moe import cases, launch, reference, routing_op
from cuda_kernels.moe.types import Int4Experts, Routing

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def _check_routing(operator: str, tokens: int, weights: torch.Tensor, ids: torch.Tensor, device: torch.device) -> None:
    check_tensor(operator, "weights", weights, shape=(tokens, "k"), dtype=torch.float32, device=device)
    check_tensor(operator, "ids", ids, shape=(tokens, weights.shape[1]), dtype=torch.int32, device=device)


def _check_residual(operator: str, residual: torch.Tensor | None, out: torch.Tensor) -> None:
    if residual is not None:
        check_tensor(operator, "residual", residual, shape=out.shape, dtype=out.dtype, device=out.device)


def _check_int4_experts(operator: str, hidden: int, experts: Int4Experts, device: torch.device) -> None:
    gate_up, down = experts.gate_up, experts.down
    check_tensor(operator, "gate_up", gate_up, shape=("E", "2I", hidden // 2), dtype=torch.uint8, device=device)
    rows, width = gate_up.shape[1], gate_up.shape[1] // 2
    count = gate_up.shape[0]
    check(rows % 2 == 0, operator, "gate_up", "an even number of rows", rows)
    check_tensor(operator, "down", down, shape=(count, hidden, width // 2), dtype=torch.uint8, device=device)
    for name, scales, outer, columns in (
        ("gate_up_scales", experts.gate_up_scales, rows, hidden),
        ("down_scales", experts.down_scales, hidden, width),
    ):
        check_tensor(operator, name, scales, shape=(count, outer, "G"), dtype=FLOATS, device=device)
        groups = scales.shape[2]
        fits = groups > 0 and columns % groups == 0 and columns // groups in GROUP_SIZES
        check(fits, operator, name, f"{columns} columns in groups of {GROUP_SIZES}", f"{groups} groups")
    same = hidden // experts.gate_up_scales.shape[2] == width // experts.down_scales.shape[2]
    check(same, operator, "down_scales", "the group size of gate_up_scales", tuple(experts.down_scales.shape))


def _fake_fused_moe(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    operator = "fused_moe"
    check_tensor(operator, "x", x, shape=("T", "H"), dtype=FLOATS)
    _check_routing(operator, x.shape[0], weights, ids, x.device)
    hidden = x.shape[1]
    check_tensor(operator, "gate_up", gate_up, shape=("E", "2I", hidden), dtype=x.dtype, device=x.device)
    count, rows = gate_up.shape[:2]
    check(rows % 2 == 0, operator, "gate_up", "an even number of rows", rows)
    check_tensor(operator, "down", down, shape=(count, hidden, rows // 2), dtype=x.dtype, device=x.device)
    _check_residual(operator, residual, x)
    return torch.empty_like(x)


def _fake_fused_moe_int4(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scales: torch.Tensor,
    down: torch.Tensor,
    down_scales: torch.Tensor,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    operator = "fused_moe_int4"
    check_tensor(operator, "x", x, shape=("T", "H"), dtype=FLOATS)
    _check_routing(operator, x.shape[0], weights, ids, x.device)
    experts = Int4Experts(gate_up=gate_up, gate_up_scales=gate_up_scales, down=down, down_scales=down_scales)
    _check_int4_experts(operator, x.shape[1], experts, x.device)
    _check_residual(operator, residual, x)
    return torch.empty_like(x)


def _fake_fused_moe_int4_int8(
    values: torch.Tensor,
    scale: torch.Tensor,
    group_sum: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scales: torch.Tensor,
    down: torch.Tensor,
    down_scales: torch.Tensor,
    residual: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    operator = "fused_moe_int4_int8"
    check_tensor(operator, "values", values, shape=("T", 2, "H/2"), dtype=torch.int8)
    tokens, hidden, device = values.shape[0], 2 * values.shape[2], values.device
    experts = Int4Experts(gate_up=gate_up, gate_up_scales=gate_up_scales, down=down, down_scales=down_scales)
    _check_int4_experts(operator, hidden, experts, device)
    groups = gate_up_scales.shape[2]
    for name, tensor in (("scale", scale), ("group_sum", group_sum)):
        check_tensor(operator, name, tensor, shape=(tokens, groups), dtype=torch.float32, device=device)
    _check_routing(operator, tokens, weights, ids, device)
    check(out_dtype in FLOATS, operator, "out_dtype", f"one of {FLOATS}", out_dtype)
    out = values.new_empty((tokens, hidden), dtype=out_dtype)
    _check_residual(operator, residual, out)
    return out


COMPILE_CASES = cases.COMPILE_CASES

OPERATORS = (
    *routing_op.OPERATORS,
    Operator(
        schema=(
            "fused_moe(Tensor x, Tensor weights, Tensor ids, Tensor gate_up, Tensor down, Tensor? residual) -> Tensor"
        ),
        reference=checked(_fake_fused_moe, reference.fused_moe),
        cuda=launch.fused_moe,
        fake=_fake_fused_moe,
    ),
    Operator(
        schema=(
            "fused_moe_int4(Tensor x, Tensor weights, Tensor ids, Tensor gate_up, Tensor gate_up_scales, "
            "Tensor down, Tensor down_scales, Tensor? residual) -> Tensor"
        ),
        reference=checked(_fake_fused_moe_int4, reference.fused_moe_int4),
        cuda=launch.fused_moe_int4,
        fake=_fake_fused_moe_int4,
    ),
    Operator(
        schema=(
            "fused_moe_int4_int8(Tensor values, Tensor scale, Tensor group_sum, Tensor weights, Tensor ids, "
            "Tensor gate_up, Tensor gate_up_scales, Tensor down, Tensor down_scales, Tensor? residual, "
            "ScalarType out_dtype) -> Tensor"
        ),
        reference=checked(_fake_fused_moe_int4_int8, reference.fused_moe_int4_int8),
        cuda=launch.fused_moe_int4_int8,
        fake=_fake_fused_moe_int4_int8,
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
    """
    result: torch.Tensor = torch.ops.cuda_kernels.fused_moe(x, routing.weights, routing.ids, gate_up, down, residual)
    return result


def fused_moe_int4(
    x: torch.Tensor, routing: Routing, experts: Int4Experts, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `fused_moe` with int4 experts, dequantized to x's dtype as they are used."""
    result: torch.Tensor = torch.ops.cuda_kernels.fused_moe_int4(
        x,
        routing.weights,
        routing.ids,
        experts.gate_up,
        experts.gate_up_scales,
        experts.down,
        experts.down_scales,
        residual,
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
    """
    result: torch.Tensor = torch.ops.cuda_kernels.fused_moe_int4_int8(
        rows.values,
        rows.scale,
        rows.group_sum,
        routing.weights,
        routing.ids,
        experts.gate_up,
        experts.gate_up_scales,
        experts.down,
        experts.down_scales,
        residual,
        out_dtype,
    )
    return result
