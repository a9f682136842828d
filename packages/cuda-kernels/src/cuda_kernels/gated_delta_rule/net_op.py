"""Operators of the whole gated delta net: declarations, checks and public functions."""

from collections.abc import Callable
from typing import Any

import torch

from cuda_kernels.checks import FLOATS, check, check_tensor, checked
from cuda_kernels.gated_delta_rule import net_launch, net_reference
from cuda_kernels.gated_delta_rule.layout import DeltaNetShape, DeltaNetState, DeltaNetWeights, HeadNorm, shape_of
from cuda_kernels.library import Operator


def _packed_decode(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(projection, weights, state, positions, slots)` with the flat arguments of the operator."""

    def run(*args: Any, **outputs: torch.Tensor) -> Any:
        projection, conv_weight, a_log, dt_bias, conv_state, recurrent_state, positions, slots, key_heads = args
        weights = DeltaNetWeights(conv_weight=conv_weight, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)
        state = DeltaNetState(conv=conv_state, recurrent=recurrent_state)
        return function(projection, weights, state, positions, slots, **outputs)

    return run


def _packed_prefill(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(projection, weights, norm, state, start, slot)` with the flat arguments of the operator."""

    def run(*args: Any, **outputs: torch.Tensor) -> Any:
        projection, conv_weight, a_log, dt_bias, norm_weight, conv_state, recurrent_state, start, slot, *numbers = args
        eps, key_heads = numbers
        weights = DeltaNetWeights(conv_weight=conv_weight, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)
        state = DeltaNetState(conv=conv_state, recurrent=recurrent_state)
        return function(projection, weights, HeadNorm(weight=norm_weight, eps=eps), state, start, slot, **outputs)

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
    conv_state = (slots, heads, shape.conv_width, shape.head_channels)
    check_tensor(operator, "conv_state", state.conv, shape=conv_state, dtype=projection.dtype, device=device)
    for name, weight, sizes_ in (
        ("conv_weight", weights.conv_weight, (shape.channels, shape.conv_width)),
        ("a_log", weights.a_log, (heads,)),
        ("dt_bias", weights.dt_bias, (heads,)),
    ):
        check_tensor(operator, name, weight, shape=sizes_, dtype=FLOATS, device=device)
    return shape


def _check_index(operator: str, argument: str, index: torch.Tensor, count: int, device: torch.device) -> None:
    check_tensor(operator, argument, index, shape=(count,), dtype=torch.int64, device=device)


def _fake_decode(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    operator, rows = "gated_delta_net_decode", projection.shape[0]
    shape = _check_net(operator, projection, weights, state)
    _check_index(operator, "positions", positions, rows, projection.device)
    _check_index(operator, "slots", slots, rows, projection.device)
    return projection.new_empty(rows, shape.out_width)


def _fake_prefill(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    norm: HeadNorm,
    state: DeltaNetState,
    start: torch.Tensor,
    slot: torch.Tensor,
) -> torch.Tensor:
    operator, device = "gated_delta_net_prefill", projection.device
    shape = _check_net(operator, projection, weights, state)
    check_tensor(operator, "norm_weight", norm.weight, shape=(shape.value_dim,), dtype=FLOATS, device=device)
    _check_index(operator, "start", start, 1, device)
    _check_index(operator, "slot", slot, 1, device)
    return projection.new_empty(projection.shape[0], shape.out_width)


_STATE = "Tensor(a!) conv_state, Tensor(b!) recurrent_state"

OPERATORS = (
    Operator(
        schema="gated_delta_net_decode(Tensor projection, Tensor conv_weight, Tensor a_log, Tensor dt_bias, "
        f"{_STATE}, Tensor positions, Tensor slots, int key_heads) -> Tensor",
        reference=_packed_decode(checked(_fake_decode, net_reference.decode)),
        fake=_packed_decode(_fake_decode),
        cuda=_packed_decode(net_launch.decode),
    ),
    Operator(
        schema="gated_delta_net_prefill(Tensor projection, Tensor conv_weight, Tensor a_log, Tensor dt_bias, "
        f"Tensor norm_weight, {_STATE}, Tensor start, Tensor slot, float eps, int key_heads) -> Tensor",
        reference=_packed_prefill(checked(_fake_prefill, net_reference.prefill)),
        fake=_packed_prefill(_fake_prefill),
        cuda=_packed_prefill(net_launch.prefill),
    ),
)


def gated_delta_net_decode(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Advance slots of a batch by one token: convolution, SiLU, l2 norms, gates, rule; without the gated norm.

    projection: (B, 2·Hk·Dk + 2·Hv·Dv + 2·Hv) float32, bfloat16 or float16, contiguous: q, k, v, z, b, a of each row.
    state: read and written in place, in the rows of the slots; its conv part has projection's dtype.
    positions: (B,) int64, where each row's token stands in its sequence; position 0 takes the slot's state as zero.
    slots: (B,) int64, each slot at most once; -1 is padding: nothing is touched, and the output row is zero.

    Returns the rule's output (B, Hv·Dv) in projection's dtype, to be normed and multiplied by silu(z) by the caller
    (`rms_norm_gated`). Computes in float32. Raises ValueError on wrong shape, dtype, device or strides.
    Source: Yang, Kautz and Hatamizadeh, 2024, arXiv:2412.06464.
    """
    w = weights
    result: torch.Tensor = torch.ops.cuda_kernels.gated_delta_net_decode(
        projection, w.conv_weight, w.a_log, w.dt_bias, state.conv, state.recurrent, positions, slots, w.key_heads
    )
    return result


def gated_delta_net_prefill(
    projection: torch.Tensor,
    weights: DeltaNetWeights,
    norm: HeadNorm,
    state: DeltaNetState,
    start: torch.Tensor,
    slot: torch.Tensor,
) -> torch.Tensor:
    """Advance one slot by T tokens, whatever T, in chunks of 64, and norm the rule's output, times silu(z).

    projection, state: as in `gated_delta_net_decode`.
    start, slot: (1,) int64. start = 0 begins a sequence: the slot's state is taken as zero, whatever lies there.
    Splitting a prompt at any token gives the same result within rounding.

    Returns (T, Hv·Dv) in projection's dtype. Raises as `gated_delta_net_decode`.
    """
    w = weights
    result: torch.Tensor = torch.ops.cuda_kernels.gated_delta_net_prefill(
        projection,
        w.conv_weight,
        w.a_log,
        w.dt_bias,
        norm.weight,
        state.conv,
        state.recurrent,
        start,
        slot,
        norm.eps,
        w.key_heads,
    )
    return result
