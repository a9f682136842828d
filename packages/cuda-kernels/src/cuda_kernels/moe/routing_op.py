"""Operators that choose experts and sort tokens by them: declarations and public functions."""

import torch

from cuda_kernels.checks import FLOATS, check, check_tensor, checked, new_int8_rows
from cuda_kernels.int4 import Int8Rows
from cuda_kernels.library import Operator
from cuda_kernels.moe import reference, routing_launch
from cuda_kernels.moe.checks import check_choice
from cuda_kernels.moe.layout import Routing


def _check_router(operator: str, x: torch.Tensor, weight: torch.Tensor, top_k: int, shared_experts: int) -> None:
    check_tensor(operator, "x", x, shape=("T", "H"), dtype=FLOATS)
    check_tensor(operator, "weight", weight, shape=("E", x.shape[1]), dtype=FLOATS, device=x.device)
    check_choice(operator, weight.shape[0], top_k, shared_experts)


def _fake_moe_router(
    x: torch.Tensor, weight: torch.Tensor, top_k: int, shared_experts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_router("moe_router", x, weight, top_k, shared_experts)
    return _new_routing(x, top_k + shared_experts)


def _new_routing(x: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (x.shape[0], slots)
    return x.new_empty(shape, dtype=torch.float32), x.new_empty(shape, dtype=torch.int32)


def _fake_rms_norm_router_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    top_k: int,
    shared_experts: int,
    group_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    operator = "rms_norm_router_int8"
    _check_router(operator, x, weight, top_k, shared_experts)
    check_tensor(operator, "norm_weight", norm_weight, shape=(x.shape[1],), dtype=FLOATS, device=x.device)
    rows = new_int8_rows(operator, x, x.shape[1], group_size)
    return *_new_routing(x, top_k + shared_experts), *rows


def _fake_moe_align_block_size(
    ids: torch.Tensor, block_size: int, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    operator = "moe_align_block_size"
    check_tensor(operator, "ids", ids, shape=("T", "k"), dtype=torch.int32)
    check(block_size >= 1, operator, "block_size", "at least 1", block_size)
    check(num_experts >= 1, operator, "num_experts", "at least 1", num_experts)
    capacity = reference.align_capacity(ids.numel(), block_size, num_experts)
    return ids.new_empty(capacity), ids.new_empty(capacity // block_size), ids.new_empty(1)


OPERATORS = (
    Operator(
        schema="moe_router(Tensor x, Tensor weight, int top_k, int shared_experts) -> (Tensor weights, Tensor ids)",
        reference=checked(_fake_moe_router, reference.moe_router),
        cuda=routing_launch.moe_router,
        fake=_fake_moe_router,
    ),
    Operator(
        schema=(
            "rms_norm_router_int8(Tensor x, Tensor norm_weight, float eps, Tensor weight, int top_k, "
            "int shared_experts, int group_size) -> "
            "(Tensor weights, Tensor ids, Tensor values, Tensor scale, Tensor group_sum)"
        ),
        reference=checked(_fake_rms_norm_router_int8, reference.rms_norm_router_int8),
        cuda=routing_launch.rms_norm_router_int8,
        fake=_fake_rms_norm_router_int8,
    ),
    Operator(
        schema=(
            "moe_align_block_size(Tensor ids, int block_size, int num_experts) -> "
            "(Tensor sorted_ids, Tensor expert_ids, Tensor num_padded)"
        ),
        reference=checked(_fake_moe_align_block_size, reference.moe_align_block_size),
        cuda=routing_launch.moe_align_block_size,
        fake=_fake_moe_align_block_size,
    ),
)


def moe_router(x: torch.Tensor, weight: torch.Tensor, *, top_k: int, shared_experts: int = 0) -> Routing:
    """Choose the `top_k` experts of each token and weigh them with softmax over the chosen logits x · weightᵀ.

    x: (T, H) float32, bfloat16 or float16, contiguous.
    weight: (E, H), or (E + 1, H) where `shared_experts` > 0: the last row gates the shared experts, ids E, E + 1, …,
        which every token takes with weight sigmoid(x · last row).

    Logits and weights are float32; among equal logits the lower index comes first, NaN before every number.
    Raises ValueError on wrong shape, dtype, device, strides or `top_k`.
    """
    weights, ids = torch.ops.cuda_kernels.moe_router(x, weight, top_k, shared_experts)
    return Routing(weights=weights, ids=ids)


def rms_norm_router_int8(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    *,
    top_k: int,
    shared_experts: int,
    group_size: int,
) -> tuple[Routing, Int8Rows]:
    """Norm x with unit offset and return both the routing of the result and the result itself quantized to int8.

    The same as `moe_router` and `quantize_int8` of `rms_norm`, without rounding the normed rows to x's dtype between.
    """
    weights, ids, values, scale, group_sum = torch.ops.cuda_kernels.rms_norm_router_int8(
        x, norm_weight, eps, weight, top_k, shared_experts, group_size
    )
    return Routing(weights=weights, ids=ids), Int8Rows(values=values, scale=scale, group_sum=group_sum)


def moe_align_block_size(
    ids: torch.Tensor, *, block_size: int, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Group the P = T·k pairs of token and slot by expert, each expert's run padded to whole blocks.

    ids: (T, k) int32, contiguous; ids outside [0, num_experts) are left out.

    Returns int32 tensors of fixed size, filled on the device without telling the host anything:
    sorted_ids (C,): pair index t·k + slot, rising within an expert; P where there is only padding;
    expert_ids (C / block_size,): the expert of each block, -1 behind the last used one;
    num_padded (1,): the used length of sorted_ids, a multiple of block_size.
    C is the most that P pairs can need: P + num_experts·(block_size - 1) rounded down to whole blocks.
    """
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.cuda_kernels.moe_align_block_size(
        ids, block_size, num_experts
    )
    return result
