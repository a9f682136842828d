"""Operators of the whole gated delta net: declarations, checks and public functions."""

from collections.abc import Callable
from typing import Any

import torch

from cuda_kernels.checks import FLOATS, check, check_tensor, checked, new_int8_rows
from cuda_kernels.gated_delta_rule import net_launch, net_reference
from cuda_kernels.gated_delta_rule.layout import DeltaNetShape, DeltaNetState, DeltaNetWeights, shape_of
from cuda_kernels.int4 import Int8Rows
from cuda_kernels.library import Operator

_NET = (
    "Tensor projection, Tensor conv_weight, Tensor a_log, Tensor dt_bias, Tensor norm_weight, "
    "Tensor(a!) conv_state, Tensor(b!) recurrent_state"
)


def _packed(function: Callable[..., Any], *, indices: int) -> Callable[..., Any]:
    """Return `function(projection, weights, state, *indices, *rest)` with the flat arguments of an operator.

    These are the tensors of `_NET`, `indices` index tensors, eps, key_heads, and the rest.
    """

    def run(*args: Any, **outputs: torch.Tensor) -> Any:
        projection, conv_weight, a_log, dt_bias, norm_weight, conv_state, recurrent_state, *others = args
        eps, key_heads, *rest = others[indices:]
        weights = DeltaNetWeights(
            conv_weight=conv_weight, a_log=a_log, dt_bias=dt_bias, norm_weight=norm_weight, eps=eps, key_heads=key_heads
        )
        state = DeltaNetState(conv=conv_state, recurrent=recurrent_state)
        return function(projection, weights, state, *others[:indices], *rest, **outputs)

    return run


def _check_net(
    operator: str, projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState
) -> DeltaNetShape:
    device = projection.device
    sizes = ("S", "Hv", "Dk", "Dv")
    check_tensor(operator, "recurrent_state", state.recurrent, shape=sizes, dtype=torch.float32, device=device)
    slots, heads = state.recurrent.shape[:2]
    check(slots > 0, operator, "recurrent_state", "at least one slot", "none")
    fits = weights.key_heads > 0 and heads % weights.key_heads == 0
    check(fits, operator, "key_heads", f"a divisor of {heads} value heads", weights.key_heads)
    check_tensor(operator, "conv_weight", weights.conv_weight, shape=("C", "W"), dtype=FLOATS, device=device)
    shape = shape_of(weights, state)
    check(shape.conv_width >= 2, operator, "conv_weight", "at least 2 taps", shape.conv_width)
    check_tensor(operator, "projection", projection, shape=("T", shape.projection_width), dtype=FLOATS)
    conv_state = (slots, heads, shape.conv_width - 1, shape.head_channels)
    check_tensor(operator, "conv_state", state.conv, shape=conv_state, dtype=projection.dtype, device=device)
    for name, weight, sizes_ in (
        ("conv_weight", weights.conv_weight, (shape.channels, shape.conv_width)),
        ("a_log", weights.a_log, (heads,)),
        ("dt_bias", weights.dt_bias, (heads,)),
        ("norm_weight", weights.norm_weight, (shape.value_dim,)),
    ):
        check_tensor(operator, name, weight, shape=sizes_, dtype=FLOATS, device=device)
    return shape


def _check_slots(operator: str, name: str, slots: torch.Tensor, count: int, device: torch.device) -> None:
    check_tensor(operator, name, slots, shape=(count,), dtype=torch.int64, device=device)


def _fake_decode(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, slots: torch.Tensor
) -> torch.Tensor:
    operator = "gated_delta_net_decode"
    shape = _check_net(operator, projection, weights, state)
    _check_slots(operator, "slots", slots, projection.shape[0], projection.device)
    return projection.new_empty(projection.shape[0], shape.out_width)


def _fake_decode_int8(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, slots: torch.Tensor, group_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    operator = "gated_delta_net_decode_int8"
    width, rows = _check_net(operator, projection, weights, state).out_width, projection.shape[0]
    _check_slots(operator, "slots", slots, rows, projection.device)
    return new_int8_rows(operator, projection, width, group_size)


def _fake_prefill(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, start: torch.Tensor, slot: torch.Tensor
) -> torch.Tensor:
    operator = "gated_delta_net_prefill"
    shape = _check_net(operator, projection, weights, state)
    _check_slots(operator, "start", start, 1, projection.device)
    _check_slots(operator, "slot", slot, 1, projection.device)
    return projection.new_empty(projection.shape[0], shape.out_width)


OPERATORS = (
    Operator(
        schema=f"gated_delta_net_decode({_NET}, Tensor slots, float eps, int key_heads) -> Tensor",
        reference=_packed(checked(_fake_decode, net_reference.decode), indices=1),
        fake=_packed(_fake_decode, indices=1),
        cuda=_packed(net_launch.decode, indices=1),
    ),
    Operator(
        schema=f"gated_delta_net_decode_int8({_NET}, Tensor slots, float eps, int key_heads, int group_size)"
        " -> (Tensor values, Tensor scale, Tensor group_sum)",
        reference=_packed(checked(_fake_decode_int8, net_reference.decode_int8), indices=1),
        fake=_packed(_fake_decode_int8, indices=1),
        cuda=_packed(net_launch.decode_int8, indices=1),
    ),
    Operator(
        schema=f"gated_delta_net_prefill({_NET}, Tensor start, Tensor slot, float eps, int key_heads) -> Tensor",
        reference=_packed(checked(_fake_prefill, net_reference.prefill), indices=2),
        fake=_packed(_fake_prefill, indices=2),
        cuda=_packed(net_launch.prefill, indices=2),
    ),
)


def gated_delta_net_decode(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, slots: torch.Tensor
) -> torch.Tensor:
    """Advance slots of a batch by one token: convolution, SiLU, l2 norms, gates, rule, gated RMS norm.

    projection: (B, 2·Hk·Dk + 2·Hv·Dv + 2·Hv) float32, bfloat16 or float16, contiguous: q, k, v, z, b, a of each row.
    state: read and written in place, in the rows of the slots; its conv part has projection's dtype.
    slots: (B,) int64, each slot at most once; -1 is padding: nothing is touched, and the output row is zero.

    Returns (B, Hv·Dv) in projection's dtype. Computes in float32. Raises ValueError on wrong shape, dtype, device or
    strides. Source: Yang, Kautz and Hatamizadeh, 2024, arXiv:2412.06464.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.gated_delta_net_decode(
        projection, *_flat(weights, state), slots, weights.eps, weights.key_heads
    )
    return result


def gated_delta_net_decode_int8(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, slots: torch.Tensor, *, group_size: int
) -> Int8Rows:
    """Return `gated_delta_net_decode` quantized to int8 per group (see int4.py); arguments and state as there.

    group_size: 32, 64 or 128, a divisor of Hv·Dv. A row of padding has values and group sums of zero.
    """
    return Int8Rows(
        *torch.ops.cuda_kernels.gated_delta_net_decode_int8(
            projection, *_flat(weights, state), slots, weights.eps, weights.key_heads, group_size
        )
    )


def gated_delta_net_prefill(
    projection: torch.Tensor, weights: DeltaNetWeights, state: DeltaNetState, start: torch.Tensor, slot: torch.Tensor
) -> torch.Tensor:
    """Advance one slot by T tokens, whatever T, in chunks of 64; arguments as in `gated_delta_net_decode`.

    start, slot: (1,) int64. start = 0 begins a sequence: the slot's state is taken as zero, whatever lies there.
    Splitting a prompt at any token gives the same result within rounding.

    Returns (T, Hv·Dv) in projection's dtype. Raises as `gated_delta_net_decode`.
    """
    result: torch.Tensor = torch.ops.cuda_kernels.gated_delta_net_prefill(
        projection, *_flat(weights, state), start, slot, weights.eps, weights.key_heads
    )
    return result


def _flat(weights: DeltaNetWeights, state: DeltaNetState) -> tuple[torch.Tensor, ...]:
    w = weights
    return w.conv_weight, w.a_log, w.dt_bias, w.norm_weight, state.conv, state.recurrent
