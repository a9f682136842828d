"""The kernels against float64 references: in Triton's interpreter at small shapes, on a GPU the same."""

from collections.abc import Callable

import pytest
import torch
from cuda_kernels.gated_delta_rule import launch, net_launch, net_reference, reference
from cuda_kernels.norm import reference as norm_reference
from cuda_kernels.testing import assert_close, poison, poisoned

F32, F16 = torch.float32, torch.float16


def on(device: torch.device, *tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    return tuple(t if t is None else t.to(device) for t in tensors)


@pytest.mark.parametrize(
    ("dims", "dtype"),
    [((16, 8), F32), ((24, 40), F16)],
    ids=["K16-V8-one-program-f32", "K24-V40-two-programs-f16"],
)
def test_decode(net: Callable, device: torch.device, dims: tuple[int, int], dtype: torch.dtype) -> None:
    n = net((1, 2), dims, slots=3, dtype=dtype)
    n.randomize_state()
    exact, there = n.double(), n.to(device)
    for slots, positions in (([2, -1, 0], [5, 3, 2]), ([0, 2, 7], [3, 6, 1]), ([1, 2, 0], [0, -1, 4])):
        rows = torch.randn(3, n.shape.projection_width).to(dtype)
        index, at = torch.tensor(slots), torch.tensor(positions)
        padded = index.where((index < 3) & (at >= 0), -1)
        expected = net_reference.decode(rows.double(), exact.weights, exact.state, at, padded)
        out = poisoned((3, n.shape.out_width), dtype, device)
        net_launch.decode(rows.to(device), there.weights, there.state, *on(device, at, index), out=out)
        assert_close(out, expected, dtype)
        assert_close(there.state.recurrent, exact.state.recurrent, F32)
        assert torch.equal(there.state.conv.cpu().double(), exact.state.conv)


def test_a_padded_row_reads_nothing(net: Callable, device: torch.device) -> None:
    n = net((1, 2), (16, 8)).to(device)
    for state in (n.state.conv, n.state.recurrent):
        poison(state)
    rows = poisoned((2, n.shape.projection_width), F32, device)
    out = poisoned((2, n.shape.out_width), F32, device)
    index = on(device, torch.tensor([4, -1]), torch.tensor([-1, 0]))
    net_launch.decode(rows, n.weights, n.state, *index, out=out)
    assert not out.any()
    assert n.state.conv.isnan().all()
    assert n.state.recurrent.isnan().all()


@pytest.mark.parametrize("width", [2, 3, 4])
def test_decoding_from_position_0_goes_around_the_ring(net: Callable, device: torch.device, width: int) -> None:
    n = net((1, 2), (16, 24), width=width).to(device)
    for state in (n.state.conv, n.state.recurrent):
        poison(state)
    rows = torch.randn(10, n.shape.projection_width, device=device)
    slots = on(device, torch.tensor([0]), torch.tensor([1]))
    expected = poisoned((10, n.shape.out_width), F32, device)
    net_launch.prefill(rows, n.weights, n.norm, n.state, *slots, out=expected)
    out = torch.empty_like(expected)
    for t, row in enumerate(rows.split(1)):
        net_launch.decode(row, n.weights, n.state, torch.tensor([t], device=device), slots[0], out=out[t : t + 1])
    z = rows[:, n.shape.channels : n.shape.channels + n.shape.out_width]
    normed = norm_reference.rms_norm_gated(out, z, n.norm.weight, n.norm.eps)
    assert_close(normed, expected, F32)
    assert_close(n.state.recurrent[0], n.state.recurrent[1], F32)
    assert torch.equal(n.state.conv[0], n.state.conv[1])


@pytest.mark.parametrize(
    ("lengths", "heads", "dims", "dtype"),
    [
        ([1], (1, 2), (16, 8), F32),
        ([130], (1, 1), (24, 40), F32),
        ([5, 0, 66], (1, 1), (16, 16), F16),
        ([0], (1, 1), (16, 16), F32),
    ],
    ids=["T1-f32", "T130-K24-V40-f32", "T5+0+66-f16", "T0"],
)
def test_chunk(
    rule: Callable,
    device: torch.device,
    lengths: list[int],
    heads: tuple[int, int],
    dims: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    inputs, initial = rule(sum(lengths), heads, dims, dtype), torch.randn(len(lengths), heads[1], *dims)
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32) if len(lengths) > 1 else None
    exact = reference.chunk_gated_delta_rule(*(x.double() for x in inputs), initial.double(), offsets)
    out, final = poisoned(inputs[2].shape, dtype, device), poisoned(initial.shape, F32, device)
    launch.chunk_gated_delta_rule(*on(device, *inputs, initial, offsets), out=out, final_state=final)
    assert_close(out, exact[0], dtype)
    assert_close(final, exact[1], dtype)


def test_chunk_through_tensor_maps(rule: Callable, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type == "cuda" and not launch.is_hopper(device):
        pytest.skip("needs a Hopper GPU, or the interpreter")
    monkeypatch.setattr(launch, "fits_tensor_maps", lambda v, key_dim, value_dim: True)
    inputs, initial = rule(70, (1, 1), (64, 64), F16), torch.randn(1, 1, 64, 64)
    exact = reference.chunk_gated_delta_rule(*(x.double() for x in inputs), initial.double())
    out, final = poisoned(inputs[2].shape, F16, device), poisoned(initial.shape, F32, device)
    launch.chunk_gated_delta_rule(*on(device, *inputs, initial, None), out=out, final_state=final)
    assert_close(out, exact[0], F16)
    assert_close(final, exact[1], F16)


def test_chunk_solves_equal_keys(rule: Callable, device: torch.device) -> None:
    q, k, v, g, _ = rule(64, (1, 1), (16, 16))
    inputs = (q, k[:1].expand_as(k).contiguous(), v, torch.zeros_like(g), torch.ones_like(g))
    out, final = poisoned(v.shape, F32, device), poisoned((1, 1, 16, 16), F32, device)
    launch.chunk_gated_delta_rule(*on(device, *inputs, None, None), out=out, final_state=final)
    # Each token replaces what the key held: the output is the token's own value.
    assert_close(out, v * (q * k[:1]).sum(-1, keepdim=True), F32)


@pytest.mark.parametrize("gate", [0.0, -50.0])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_chunk_at_extreme_gates(rule: Callable, device: torch.device, gate: float, beta: float) -> None:
    q, k, v, g, b = rule(70, (1, 1), (16, 16))
    inputs = (q, k, v, torch.full_like(g, gate), torch.full_like(b, beta))
    initial = torch.randn(1, 1, 16, 16)
    exact = reference.chunk_gated_delta_rule(*(x.double() for x in inputs), initial.double())
    out, final = poisoned(v.shape, F32, device), poisoned(initial.shape, F32, device)
    launch.chunk_gated_delta_rule(*on(device, *inputs, initial, None), out=out, final_state=final)
    assert_close(out, exact[0], F32)
    if gate * (1 - beta) == 0:
        assert_close(final, exact[1], F32)
    else:  # all is forgotten and nothing is written
        assert final.abs().max() < 1e-20


def test_recurrent(rule: Callable, device: torch.device) -> None:
    inputs, initial = rule(5, (1, 2), (24, 40)), torch.randn(1, 2, 24, 40)
    exact = reference.recurrent_gated_delta_rule(*(x.double() for x in inputs), initial.double())
    out, final = poisoned(inputs[2].shape, F32, device), poisoned(initial.shape, F32, device)
    launch.recurrent_gated_delta_rule(*on(device, *inputs, initial), out=out, final_state=final)
    assert_close(out, exact[0], F32)
    assert_close(final, exact[1], F32)


@pytest.mark.parametrize("tokens", [2, 67])
def test_prefill(net: Callable, device: torch.device, tokens: int) -> None:
    n = net((1, 2), (16, 8))
    n.state.conv.fill_(float("nan"))
    n.state.recurrent.fill_(float("nan"))
    exact, there = n.double(), n.to(device)
    for start, slot in ((0, 1), (tokens, 1), (2 * tokens, 1), (5, -1)):
        rows = torch.randn(tokens, n.shape.projection_width)
        index = (torch.tensor([start]), torch.tensor([slot]))
        expected = net_reference.prefill(rows.double(), exact.weights, exact.norm, exact.state, *index)
        out = poisoned(expected.shape, F32, device)
        net_launch.prefill(rows.to(device), there.weights, there.norm, there.state, *on(device, *index), out=out)
        assert_close(out, expected, F32)
        assert_close(there.state.recurrent[1], exact.state.recurrent[1], F32)
        # An entry that no token has written yet is still not a number.
        conv = there.state.conv[1].cpu().double()
        torch.testing.assert_close(conv, exact.state.conv[1], rtol=0, atol=0, equal_nan=True)
    assert there.state.recurrent[0].isnan().all()
    assert there.state.conv[0].isnan().all()
