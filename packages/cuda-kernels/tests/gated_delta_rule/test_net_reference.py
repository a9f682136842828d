"""The whole net in plain torch: convolution state, slots, splits, and decoding against prefill."""

from collections.abc import Callable

import pytest
import torch
from cuda_kernels.gated_delta_rule import net_reference
from cuda_kernels.gated_delta_rule.layout import as_heads_read, past_inputs
from cuda_kernels.norm.reference import rms_norm_gated
from cuda_kernels.testing import relative_error

HEADS, DIMS = (2, 4), (16, 8)


def number(value: int) -> torch.Tensor:
    return torch.tensor([value])


def by_definition(net, projection: torch.Tensor) -> torch.Tensor:
    """Return the net's output for a whole sequence in float64: torch's convolution and norms, the recurrent rule."""
    s, w, x = net.shape, net.double().weights, projection.double()
    inputs = torch.nn.functional.pad(x[:, : s.channels].T, (s.conv_width - 1, 0))
    mixed = torch.nn.functional.conv1d(inputs[None], w.conv_weight[:, None], groups=s.channels)[0]
    mixed = torch.nn.functional.silu(mixed).T
    q, k, v = mixed.split((s.key_heads * s.key_dim, s.key_heads * s.key_dim, s.out_width), 1)
    q, k, v = (
        q.reshape(-1, s.key_heads, s.key_dim),
        k.reshape(-1, s.key_heads, s.key_dim),
        v.reshape(-1, *value_sizes(s)),
    )
    q, k = (y / (y.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    z, b, a = x[:, s.channels :].split((s.out_width, s.value_heads, s.value_heads), 1)
    g = -w.a_log.exp() * torch.nn.functional.softplus(a + w.dt_bias)
    recurrent = net_reference.reference.recurrent_gated_delta_rule
    out, _ = recurrent(q / s.key_dim**0.5, k, v, g, b.sigmoid())
    normed = torch.nn.functional.rms_norm(out, (s.value_dim,), net.norm.weight.double(), net.norm.eps)
    return normed.flatten(1) * torch.nn.functional.silu(z)


def value_sizes(shape) -> tuple[int, int]:
    return shape.value_heads, shape.value_dim


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("tokens", [1, 2, 3, 70])
def test_prefill_follows_the_definition(net: Callable, tokens: int, width: int) -> None:
    n = net(HEADS, DIMS, width=width)
    projection = torch.randn(tokens, n.shape.projection_width)
    out = net_reference.prefill(projection, n.weights, n.norm, n.state, number(0), number(1))
    assert relative_error(out, by_definition(n, projection)) < 1e-5
    assert not n.state.recurrent[0].any()
    assert not n.state.conv[0].any()


def test_decoding_continues_a_prefill(net: Callable) -> None:
    n = net(HEADS, DIMS)
    projection = torch.randn(40, n.shape.projection_width)
    expected = by_definition(n, projection)
    net_reference.prefill(projection[:25], n.weights, n.norm, n.state, number(0), number(0))
    for t in range(25, 40):
        assert relative_error(decode_normed(n, projection[t : t + 1], t)[0], expected[t]) < 1e-5, t


@pytest.mark.parametrize("width", [2, 3, 4])
def test_decoding_from_position_0_goes_around_the_ring(net: Callable, width: int) -> None:
    n = net(HEADS, DIMS, width=width)
    n.state.conv.fill_(float("nan"))
    n.state.recurrent.fill_(float("nan"))
    projection = torch.randn(10, n.shape.projection_width)
    whole = net_reference.prefill(projection, n.weights, n.norm, n.state, number(0), number(1))
    rows = [decode_normed(n, projection[t : t + 1], t) for t in range(10)]
    assert relative_error(torch.cat(rows), whole) < 1e-5
    assert relative_error(n.state.recurrent[0], n.state.recurrent[1]) < 1e-5
    assert torch.equal(n.state.conv[0], n.state.conv[1])


def decode_normed(n, row: torch.Tensor, position: int) -> torch.Tensor:
    """Decode one token of slot 0 and norm it, as the caller of the operator does."""
    out = net_reference.decode(row, n.weights, n.state, number(position), number(0))
    z = row[:, n.shape.channels : n.shape.channels + n.shape.out_width]
    return rms_norm_gated(out, z, n.norm.weight, n.norm.eps)


def test_a_prompt_may_be_split_anywhere(net: Callable) -> None:
    n = net((1, 2), (8, 8), slots=1)
    projection = torch.randn(70, n.shape.projection_width)
    whole = net_reference.prefill(projection, n.weights, n.norm, n.state, number(0), number(0))
    final = n.clone_state()
    for split in range(1, 70):
        first = net_reference.prefill(projection[:split], n.weights, n.norm, n.state, number(0), number(0))
        second = net_reference.prefill(projection[split:], n.weights, n.norm, n.state, number(split), number(0))
        assert relative_error(torch.cat((first, second)), whole) < 1e-5, split
        assert relative_error(n.state.recurrent, final.recurrent) < 1e-5, split
        assert torch.equal(n.state.conv, final.conv), split


def test_a_new_sequence_sees_nothing_of_the_old_one(net: Callable) -> None:
    n = net(HEADS, DIMS)
    projection = torch.randn(5, n.shape.projection_width)
    clean = net_reference.prefill(projection, n.weights, n.norm, n.state, number(0), number(0))
    n.state.conv.fill_(float("nan"))
    n.state.recurrent.fill_(float("nan"))
    assert torch.equal(net_reference.prefill(projection, n.weights, n.norm, n.state, number(0), number(0)), clean)
    assert torch.isfinite(n.state.recurrent[0]).all()


def test_slot_minus_one_touches_nothing(net: Callable) -> None:
    n = net(HEADS, DIMS)
    n.randomize_state()
    before = n.clone_state()
    projection = torch.full((3, n.shape.projection_width), float("nan"))
    assert not net_reference.prefill(projection, n.weights, n.norm, n.state, number(0), number(-1)).any()
    assert not net_reference.decode(projection, n.weights, n.state, torch.arange(3), torch.full((3,), -1)).any()
    assert torch.equal(n.state.recurrent, before.recurrent)
    assert torch.equal(n.state.conv, before.conv)


def test_rows_of_a_batch_equal_each_alone(net: Callable) -> None:
    n = net(HEADS, DIMS, slots=5)
    n.randomize_state()
    alone = n.clone_state()
    projection = torch.randn(4, n.shape.projection_width)
    positions, slots = torch.tensor([9, 2, 0, 2]), torch.tensor([3, -1, 0, 4])
    out = net_reference.decode(projection, n.weights, n.state, positions, slots)
    for row in (0, 2, 3):
        one = slice(row, row + 1)
        single = net_reference.decode(projection[one], n.weights, alone, positions[one], slots[one])
        assert relative_error(out[row], single[0]) < 1e-6
    assert not out[1].any()
    assert relative_error(n.state.recurrent, alone.recurrent) < 1e-6
    assert torch.equal(n.state.conv, alone.conv)


def test_ring_gives_back_the_inputs_before_a_position(net: Callable) -> None:
    shape = net(HEADS, DIMS).shape
    inputs = torch.randn(9, shape.channels)
    ring = torch.full((1, shape.value_heads, shape.conv_width, shape.head_channels), float("nan"))
    for position in range(9):
        expected = torch.cat((torch.zeros(3, shape.channels), inputs))[position : position + 3]
        assert torch.equal(past_inputs(ring, number(position), shape)[0], expected), position
        ring[0, :, position % 4] = as_heads_read(inputs[position], shape)
