"""The operators as torch sees them: opcheck, refusal of wrong arguments, torch.compile, long decoding."""

from collections.abc import Callable

import pytest
import torch
from cuda_kernels.gated_delta_rule.net_op import gated_delta_net_decode, gated_delta_net_prefill
from cuda_kernels.gated_delta_rule.op import chunk_gated_delta_rule, recurrent_gated_delta_rule
from cuda_kernels.testing import check_operator, relative_error

HEADS, DIMS = (2, 4), (16, 8)
OPS = torch.ops.cuda_kernels


def test_opcheck(net: Callable, rule: Callable) -> None:
    n = net(HEADS, DIMS)
    x, positions, slots = torch.randn(5, n.shape.projection_width), torch.tensor([4, 0]), torch.tensor([1, -1])
    check_operator("gated_delta_net_decode", x[:2], *n.decode_arguments(n.state), positions, slots, 2)
    start, slot = torch.tensor([0]), torch.tensor([1])
    check_operator("gated_delta_net_prefill", x, *n.prefill_arguments(n.state), start, slot, 1e-6, 2)
    inputs, initial = rule(5, HEADS, DIMS), torch.randn(1, HEADS[1], *DIMS)
    check_operator("recurrent_gated_delta_rule", *inputs, initial)
    check_operator("chunk_gated_delta_rule", *inputs, None, torch.tensor([0, 5], dtype=torch.int32))


def number(value: int) -> torch.Tensor:
    return torch.tensor([value])


def swap(arguments: tuple, index: int, value: object) -> tuple:
    return (*arguments[:index], value, *arguments[index + 1 :])


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, lambda q: q[0], "q: expected shape"),
        (0, lambda q: q.transpose(0, 1).contiguous().transpose(0, 1), "q: expected a contiguous tensor"),
        (1, lambda k: k[:, :, :3].contiguous(), "k: expected shape"),
        (2, lambda v: v.half(), "v: expected dtype"),
        (2, lambda v: v[:, :3].contiguous(), "v: expected a multiple of 2 heads, got 3"),
        (3, lambda g: g.double(), "g: expected dtype torch.float32"),
        (4, lambda b: b[:2], "beta: expected shape"),
        (5, lambda s: s.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2), "initial_state: expected a contiguous"),
        (6, lambda c: c.long(), "cu_seqlens: expected dtype torch.int32"),
        (6, lambda c: c[:1], "cu_seqlens: expected at least two"),
        (6, lambda c: c + 1, r"cu_seqlens: expected rising offsets from 0 to 5, got \[1, 6\]"),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_rule_refuses(rule: Callable, index: int, change: Callable, message: str) -> None:
    offsets = torch.tensor([0, 5], dtype=torch.int32)
    arguments = (*rule(5, HEADS, DIMS), torch.randn(1, HEADS[1], *DIMS), offsets)
    with pytest.raises(ValueError, match=f"chunk_gated_delta_rule: {message}"):
        OPS.chunk_gated_delta_rule(*swap(arguments, index, change(arguments[index])))


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, lambda x: x[:, :-1].contiguous(), "projection: expected shape"),
        (1, lambda w: w[:, :1].contiguous(), "conv_weight: expected at least 2 taps"),
        (2, lambda a: a[:2], "a_log: expected shape"),
        (4, lambda s: s.half(), "conv_state: expected dtype"),
        (4, lambda s: s[:, :, :3].contiguous(), r"conv_state: expected shape \(2, 4, 4, 40\)"),
        (5, lambda s: s.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2), "recurrent_state: expected a contiguous"),
        (6, lambda p: p.int(), "positions: expected dtype torch.int64"),
        (6, lambda p: p[:1], r"positions: expected shape \(2\), got shape \(1,\)"),
        (7, lambda s: s.int(), "slots: expected dtype torch.int64"),
        (8, lambda _: 3, "key_heads: expected a divisor of 4"),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_net_refuses(net: Callable, index: int, change: Callable, message: str) -> None:
    n = net(HEADS, DIMS)
    x, positions, slots = torch.randn(2, n.shape.projection_width), torch.tensor([3, 5]), torch.tensor([0, 1])
    arguments = (x, *n.decode_arguments(n.state), positions, slots, 2)
    with pytest.raises(ValueError, match=f"gated_delta_net_decode: {message}"):
        OPS.gated_delta_net_decode(*swap(arguments, index, change(arguments[index])))


def test_prefill_refuses_a_norm_of_another_size(net: Callable) -> None:
    n = net(HEADS, DIMS)
    x, one = torch.randn(2, n.shape.projection_width), torch.tensor([1])
    arguments = (x, *n.prefill_arguments(n.state), one, one, 1e-6, 2)
    with pytest.raises(ValueError, match=r"gated_delta_net_prefill: norm_weight: expected shape \(8\)"):
        OPS.gated_delta_net_prefill(*swap(arguments, 4, torch.ones(4)))


def test_public_functions_call_the_operators(net: Callable, rule: Callable) -> None:
    n = net(HEADS, DIMS)
    x, zero, one, three = torch.randn(3, n.shape.projection_width), *map(number, (0, 1, 3))
    state = n.clone_state()
    expected = OPS.gated_delta_net_prefill(x, *n.prefill_arguments(state), zero, one, 1e-6, 2)
    assert torch.equal(gated_delta_net_prefill(x, n.weights, n.norm, n.state, zero, one), expected)
    expected = OPS.gated_delta_net_decode(x[:1], *n.decode_arguments(state), three, one, 2)
    assert torch.equal(gated_delta_net_decode(x[:1], n.weights, n.state, three, one), expected)
    inputs = rule(5, HEADS, DIMS)
    for mine, other in zip(recurrent_gated_delta_rule(*inputs), chunk_gated_delta_rule(*inputs), strict=True):
        assert relative_error(mine, other) < 1e-5


def test_compiles_without_graph_breaks(net: Callable) -> None:
    n = net(HEADS, DIMS)
    state = n.clone_state()

    def layer(x: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return OPS.gated_delta_net_decode(x * 2, *n.decode_arguments(state), positions, slots, 2) + 1

    x, positions, slots = torch.randn(2, n.shape.projection_width), torch.tensor([3, 7]), torch.tensor([1, 0])
    out = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, positions, slots)
    assert torch.equal(out, OPS.gated_delta_net_decode(x * 2, *n.decode_arguments(n.state), positions, slots, 2) + 1)
    assert torch.equal(state.recurrent, n.state.recurrent)
