"""On a GPU: real shapes, every length, long decoding, graphs, dependent launches, large states."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from cuda_kernels.gated_delta_rule import net_reference, reference
from cuda_kernels.testing import assert_close, poison, relative_error

pytestmark = pytest.mark.gpu
HEADS, DIMS = (2, 4), (128, 128)
BF16 = torch.bfloat16
OPS = torch.ops.cuda_kernels


def index(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="cuda")


def rows_of(n, count: int) -> torch.Tensor:
    return torch.randn(count, n.shape.projection_width).to(BF16).cuda()


def test_packed_sequences_equal_each_alone(rule: Callable) -> None:
    lengths = [5, 0, 70, 300, 64, 1]
    inputs = tuple(x.cuda() for x in rule(sum(lengths), HEADS, DIMS, BF16))
    initial = torch.randn(len(lengths), HEADS[1], *DIMS, device="cuda")
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).cuda()
    out, final = OPS.chunk_gated_delta_rule(*inputs, initial, offsets)
    for i, (first, last) in enumerate(pairwise(offsets.tolist())):
        alone = OPS.chunk_gated_delta_rule(*(x[first:last] for x in inputs), initial[i : i + 1], None)
        assert_close(out[first:last], alone[0], BF16)
        assert_close(final[i : i + 1], alone[1], BF16)


def test_a_prompt_may_be_split_anywhere(net: Callable) -> None:
    n = net(HEADS, DIMS, dtype=BF16).to(torch.device("cuda"))
    x = rows_of(n, 130)
    whole = OPS.gated_delta_net_prefill(x, *n.prefill_arguments(n.state), index(0), index(1), 1e-6, 2)
    for split in range(1, 130):
        first = OPS.gated_delta_net_prefill(x[:split], *n.prefill_arguments(n.state), index(0), index(0), 1e-6, 2)
        second = OPS.gated_delta_net_prefill(x[split:], *n.prefill_arguments(n.state), index(split), index(0), 1e-6, 2)
        # Each side is within the bound of the exact result.
        assert relative_error(torch.cat((first, second)), whole) < 1e-2, split
        assert relative_error(n.state.recurrent[0], n.state.recurrent[1]) < 1e-2, split
        assert torch.equal(n.state.conv[0], n.state.conv[1]), split


def test_ten_thousand_steps_back_to_back(net: Callable) -> None:
    n = net(HEADS, DIMS, dtype=BF16)
    n.randomize_state()
    exact, n = n.double().to(torch.device("cuda")), n.to(torch.device("cuda"))
    x, positions, slots = rows_of(n, 10_000), torch.arange(5, 10_005, device="cuda").split(1), index(1)
    # Nothing stands between the steps: each must see the state of the one before although it starts early.
    steps = zip(x.split(1), positions, strict=True)
    outs = [OPS.gated_delta_net_decode(row, *n.decode_arguments(n.state), at, slots, 2) for row, at in steps]
    for t, (row, at) in enumerate(zip(x.double().split(1), positions, strict=True)):
        expected = net_reference.decode(row, exact.weights, exact.state, at, slots)
        if t % 1000 == 999:
            assert_close(outs[t], expected, BF16)
    assert_close(n.state.recurrent, exact.state.recurrent, torch.float32)


def test_places_written_right_before_the_step(net: Callable) -> None:
    n = net(HEADS, DIMS, slots=8, dtype=BF16)
    n.randomize_state()
    exact, n = n.double().to(torch.device("cuda")), n.to(torch.device("cuda"))
    positions, slots = index(0, 0), index(0, 1)
    for step in range(50):
        x = rows_of(n, 2)
        # By turns the slots change, the positions, and both.
        if step % 3 != 1:
            slots.copy_(index((3 * step) % 8, -1 if step % 5 == 0 else (3 * step + 1) % 8))
        if step % 3 != 2:
            positions.copy_(index(step, 2 * step + 1))
        out = OPS.gated_delta_net_decode(x, *n.decode_arguments(n.state), positions, slots, 2)
        assert_close(out, net_reference.decode(x.double(), exact.weights, exact.state, positions, slots), BF16)
    assert_close(n.state.recurrent, exact.state.recurrent, torch.float32)
    assert torch.equal(n.state.conv.double(), exact.state.conv)


def test_a_row_alone_equals_the_row_in_a_batch(net: Callable) -> None:
    n = net((16, 32), DIMS, slots=260, dtype=BF16)
    n.randomize_state()
    n = n.to(torch.device("cuda"))
    for count in (33, 256):
        x, slots, positions = rows_of(n, count), torch.randperm(260)[:count].cuda(), torch.arange(count).cuda()
        alone = n.clone_state()
        out = OPS.gated_delta_net_decode(x, *n.decode_arguments(n.state), positions, slots, 16)
        for i in (0, count // 2, count - 1):
            one, state = slice(i, i + 1), n.decode_arguments(alone)
            single = OPS.gated_delta_net_decode(x[one], *state, positions[one], slots[one], 16)
            assert_close(out[one], single, BF16)
            assert_close(n.state.recurrent[slots[i]], alone.recurrent[slots[i]], torch.float32)


@pytest.mark.parametrize("form", ["decode", "prefill"])
def test_graph_replays(net: Callable, form: str) -> None:
    n = net(HEADS, DIMS, dtype=BF16).to(torch.device("cuda"))
    x = rows_of(n, 100 if form == "prefill" else 1)
    start, slot = index(1), index(0)

    def run(state) -> torch.Tensor:
        if form == "prefill":
            return OPS.gated_delta_net_prefill(x, *n.prefill_arguments(state), start, slot, 1e-6, 2)
        return OPS.gated_delta_net_decode(x, *n.decode_arguments(state), start, slot, 2)

    state = n.clone_state()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(n.clone_state())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(state)
    keep = []
    for step in range(100):
        x.copy_(rows_of(n, x.shape[0]))
        start.add_(1)
        keep.append(poison(torch.empty(1 << (10 + step % 10), device="cuda")))
        if step % 3 == 0:
            keep.clear()
        poison(captured)
        graph.replay()
        assert torch.equal(captured, run(n.state)), step
    assert torch.equal(state.recurrent, n.state.recurrent)


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=["bf16", "f16", "f32"])
def test_chunk_at_every_length(rule: Callable, dtype: torch.dtype) -> None:
    lengths = [*range(131), 255, 256, 257, 1341] if dtype == BF16 else [1, 64, 130]
    whole = tuple(x.cuda() for x in rule(max(lengths), HEADS, DIMS, dtype))
    initial = torch.randn(1, HEADS[1], *DIMS, device="cuda")
    for length in lengths:
        inputs = tuple(x[:length] for x in whole)
        exact = reference.chunk_gated_delta_rule(*(x.double() for x in inputs), initial.double())
        out, final = OPS.chunk_gated_delta_rule(*inputs, initial, None)
        assert_close(out, exact[0], dtype)
        assert_close(final, exact[1], dtype)


def test_compiles_with_inductor(net: Callable) -> None:
    n = net(HEADS, DIMS, dtype=BF16).to(torch.device("cuda"))
    x, positions, slots, state = rows_of(n, 2), index(3, 7), index(1, 0), n.clone_state()

    def layer(x: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return OPS.gated_delta_net_decode(x * 2, *n.decode_arguments(state), positions, slots, 2) + 1

    out = torch.compile(layer, fullgraph=True)(x, positions, slots)
    expected = OPS.gated_delta_net_decode(x * 2, *n.decode_arguments(n.state), positions, slots, 2) + 1
    assert_close(out, expected, BF16)
    assert_close(state.recurrent, n.state.recurrent, torch.float32)


def test_states_of_more_than_two_to_the_31_elements(net: Callable) -> None:
    n = net((16, 32), DIMS, slots=1, dtype=BF16).to(torch.device("cuda"))
    slots = 2**31 // (32 * 128 * 128) + 2
    if torch.cuda.mem_get_info()[0] < 3 * slots * 32 * 128 * 128 * 4:
        pytest.skip(f"needs {3 * slots * 2} MiB of free device memory")
    small, large = n.clone_state(), n.clone_state()
    large = type(large)(
        conv=torch.zeros(slots, *large.conv.shape[1:], dtype=BF16, device="cuda"),
        recurrent=torch.zeros(slots, *large.recurrent.shape[1:], device="cuda"),
    )
    x = rows_of(n, 70)
    for state, slot in ((small, 0), (large, slots - 1)):
        OPS.gated_delta_net_prefill(x, *n.prefill_arguments(state), index(0), index(slot), 1e-6, 16)
        OPS.gated_delta_net_decode(x[:1], *n.decode_arguments(state), index(70), index(slot), 16)
    assert torch.equal(large.recurrent[-1], small.recurrent[0])
    assert torch.equal(large.conv[-1], small.conv[0])
    assert not large.recurrent[:-1].any()
