"""Operators of the whole gated delta net: declarations, checks and public functions."""

import torch

from cuda_kernels import int4
from cuda_kernels.checks import check, check_tensor
from cuda_kernels.gated_delta_rule import net_reference
from cuda_kernels.gated_delta_rule.layout import DeltaNetShape, DeltaNetState, DeltaNetWeights, shape_of
from cuda_kernels.library import Operator

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

_NET = (
    "Tensor projection, Tensor conv_weight, Tensor a_log, Tensor dt_bias, Tensor norm_weight, "
    "Tensor(a!) conv_state, Tensor(b!) recurrent_state"
)


def _pack(
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    eps: float,
    key_heads: int,
) -> tuple[DeltaNetWeights, DeltaNetState]:
    weights = DeltaNetWeights(
        conv_weight=conv_weight, a_log=a_log, dt_bias=dt_bias, norm_weight=norm_weight, eps=eps, key_heads=key_heads
    )
    return weights, DeltaNetState(conv=conv_state, recurrent=recurrent_state)


def _check_net(
    operator: str, projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState
) -> DeltaNetShape:
    device = projection.device
    check_tensor(
        operator, "recurrent_state", state.recurrent, shape=("S", "Hv", "Dk", "Dv"), dtype=torch.float32, device=device
    )
    slots, heads = state.recurrent.shape[:2]
    check(
        weights.key_heads > 0 and heads % weights.key_heads == 0,
        operator,
        "key_heads",
        f"a divisor of {heads} value heads",
        weights.key_heads,
    )
    check(weights.conv_weight.dim() == 2, operator, "conv_weight", "shape (C, W)", tuple(weights.conv_weight.shape))
    shape = shape_of(weights, state)
    check(shape.conv_width >= 2, operator, "conv_weight", "at least 2 taps", shape.conv_width)
    check_tensor(operator, "projection", projection, shape=("T", shape.projection_width), dtype=FLOATS)
    conv_state = (slots, heads, shape.conv_width - 1, shape.head_channels)
    check_tensor(operator, "conv_state", state.conv, shape=conv_state, dtype=projection.dtype, device=device)
    for name, weight, sizes in (
        ("conv_weight", weights.conv_weight, (shape.channels, shape.conv_width)),
        ("a_log", weights.a_log, (heads,)),
        ("dt_bias", weights.dt_bias, (heads,)),
        ("norm_weight", weights.norm_weight, (shape.value_dim,)),
    ):
        check_tensor(operator, name, weight, shape=sizes, dtype=FLOATS, device=device)
    return shape


def _fake_decode(
    projection: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    slots: torch.Tensor,
    eps: float,
    key_heads: int,
    operator: str = "gated_delta_net_decode",
) -> torch.Tensor:
    net = _pack(conv_weight, a_log, dt_bias, norm_weight, conv_state, recurrent_state, eps, key_heads)
    shape = _check_net(operator, projection, *net)
    check_tensor(operator, "slots", slots, shape=(projection.shape[0],), dtype=torch.int64, device=projection.device)
    return projection.new_empty(projection.shape[0], shape.out_width)


def _decode(
    projection: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    slots: torch.Tensor,
    eps: float,
    key_heads: int,
) -> torch.Tensor:
    net = (conv_weight, a_log, dt_bias, norm_weight, conv_state, recurrent_state)
    _fake_decode(projection, *net, slots, eps, key_heads)
    return net_reference.decode(projection, *_pack(*net, eps, key_heads), slots)


def _fake_decode_int8(
    projection: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    slots: torch.Tensor,
    eps: float,
    key_heads: int,
    group_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    net = (conv_weight, a_log, dt_bias, norm_weight, conv_state, recurrent_state)
    operator = "gated_delta_net_decode_int8"
    out = _fake_decode(projection, *net, slots, eps, key_heads, operator)
    rows, width = out.shape
    check(group_size in int4.GROUP_SIZES, operator, "group_size", f"one of {int4.GROUP_SIZES}", group_size)
    check(width % group_size == 0, operator, "group_size", f"a divisor of the row of {width}", group_size)
    groups = out.new_empty((rows, width // group_size), dtype=torch.float32)
    return out.new_empty((rows, 2, width // 2), dtype=torch.int8), groups, torch.empty_like(groups)


def _decode_int8(
    projection: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    slots: torch.Tensor,
    eps: float,
    key_heads: int,
    group_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    net = (conv_weight, a_log, dt_bias, norm_weight, conv_state, recurrent_state)
    _fake_decode_int8(projection, *net, slots, eps, key_heads, group_size)
    out = net_reference.decode(projection, *_pack(*net, eps, key_heads), slots)
    return int4.quantize_activation(out, group_size=group_size)


def _fake_prefill(
    projection: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    start: torch.Tensor,
    slot: torch.Tensor,
    eps: float,
    key_heads: int,
) -> torch.Tensor:
    net = _pack(conv_weight, a_log, dt_bias, norm_weight, conv_state, recurrent_state, eps, key_heads)
    shape = _check_net("gated_delta_net_prefill", projection, *net)
    for name, number in (("start", start), ("slot", slot)):
        check_tensor("gated_delta_net_prefill", name, number, shape=(1,), dtype=torch.int64, device=projection.device)
    return projection.new_empty(projection.shape[0], shape.out_width)


def _prefill(
    projection: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    start: torch.Tensor,
    slot: torch.Tensor,
    eps: float,
    key_heads: int,
) -> torch.Tensor:
    net = (conv_weight, a_log, dt_bias, norm_weight, conv_state, recurrent_state)
    _fake_prefill(projection, *net, start, slot, eps, key_heads)
    return net_reference.prefill(projection, *_pack(*net, eps, key_heads), start, slot)


OPERATORS = (
    Operator(
        schema=f"gated_delta_net_decode({_NET}, Tensor slots, float eps, int key_heads) -> Tensor",
        reference=_decode,
        fake=_fake_decode,
    ),
    Operator(
        schema=f"gated_delta_net_decode_int8({_NET}, Tensor slots, float eps, int key_heads, int group_size)"
        " -> (Tensor values, Tensor scale, Tensor group_sum)",
        reference=_decode_int8,
        fake=_fake_decode_int8,
    ),
    Operator(
        schema=f"gated_delta_net_prefill({_NET}, Tensor start, Tensor slot, float eps, int key_heads) -> Tensor",
        reference=_prefill,
        fake=_fake_prefill,
    ),
)
