"""The operators at real shapes on a GPU: every token count, skewed routings, large offsets, graphs, and compilation."""

from dataclasses import astuple

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.moe import reference
from cuda_kernels.moe.layout import Int4Experts, Routing
from cuda_kernels.moe.op import fused_moe, fused_moe_int4, fused_moe_int4_int8
from cuda_kernels.moe.routing_op import moe_align_block_size, moe_router, rms_norm_router_int8
from cuda_kernels.moe.testing import expected, routing, table
from cuda_kernels.testing import assert_close, check_operator

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
HIDDEN, WIDTH, SLOTS = 2048, 512, 9
COUNTS = (*range(131), 255, 256, 257, 1341, 4095)


@pytest.fixture(scope="module")
def experts() -> Int4Experts:
    return table(33, HIDDEN, WIDTH, 128, CUDA)


def sample(tokens: int) -> torch.Tensor:
    """Return up to eight of the rows, the first and the last among them."""
    rows = {0, tokens - 1, *torch.randint(0, tokens, (6,)).tolist()}
    return torch.tensor(sorted(rows), device=CUDA)


def check_rows(out: torch.Tensor, x: torch.Tensor, routed: Routing, experts: Int4Experts, arithmetic: str) -> None:
    """Compare a sample of rows with the reference in float64."""
    assert bool(torch.isfinite(out).all())
    if out.shape[0]:
        rows = sample(out.shape[0])
        some = Routing(weights=routed.weights[rows], ids=routed.ids[rows])
        assert_close(out[rows], expected(x[rows], some, experts, None), arithmetic)


@pytest.mark.parametrize("tokens", COUNTS, ids="T{}".format)
def test_every_token_count(tokens: int, experts: Int4Experts) -> None:
    x, routed = torch.randn(tokens, HIDDEN, device=CUDA).bfloat16(), routing(tokens, SLOTS, 33, CUDA)
    rows = int4.quantize_activation(x, group_size=128)
    check_rows(fused_moe_int4_int8(rows, routed, experts, out_dtype=torch.bfloat16), x, routed, experts, "int8")
    check_rows(fused_moe_int4(x, routed, experts), x, routed, experts, "bfloat16")


@pytest.mark.parametrize("group", [32, 64, 128], ids="group{}".format)
@pytest.mark.parametrize("tokens", [1, 16, 300], ids="T{}".format)
def test_groups(tokens: int, group: int) -> None:
    experts, routed = table(9, 640, 384, group, CUDA), routing(tokens, 3, 9, CUDA)
    x = torch.randn(tokens, 640, device=CUDA).bfloat16()
    rows = int4.quantize_activation(x, group_size=group)
    check_rows(fused_moe_int4_int8(rows, routed, experts, out_dtype=torch.bfloat16), x, routed, experts, "int8")
    check_rows(fused_moe_int4(x, routed, experts), x, routed, experts, "bfloat16")


@pytest.mark.parametrize("tokens", [1, 20, 700], ids="T{}".format)
def test_dense_experts(tokens: int, experts: Int4Experts) -> None:
    x, routed = torch.randn(tokens, HIDDEN, device=CUDA).bfloat16(), routing(tokens, SLOTS, 33, CUDA)
    gate_up = int4.dequantize(experts.gate_up, experts.gate_up_scales, dtype=torch.bfloat16)
    down = int4.dequantize(experts.down, experts.down_scales, dtype=torch.bfloat16)
    check_rows(fused_moe(x, routed, gate_up, down), x, routed, experts, "bfloat16")


@pytest.mark.parametrize("expert", [0, 32, -1, 33], ids=["first", "last", "none", "past-the-end"])
@pytest.mark.parametrize("tokens", [1, 17, 1000], ids="T{}".format)
def test_all_tokens_to_one_expert(tokens: int, expert: int, experts: Int4Experts) -> None:
    x = torch.randn(tokens, HIDDEN, device=CUDA)
    ids = torch.full((tokens, 1), expert, dtype=torch.int32, device=CUDA)
    routed = Routing(weights=torch.rand(tokens, 1, device=CUDA), ids=ids)
    rows = int4.quantize_activation(x, group_size=128)
    check_rows(fused_moe_int4_int8(rows, routed, experts, out_dtype=torch.float32), x, routed, experts, "int8")


def test_rows_are_the_same_in_batches_that_the_same_kernels_take(experts: Int4Experts) -> None:
    x, routed = torch.randn(8, HIDDEN, device=CUDA), routing(8, SLOTS, 33, CUDA)
    rows = int4.quantize_activation(x, group_size=128)
    together = fused_moe_int4_int8(rows, routed, experts, out_dtype=torch.float32)
    for first in (0, 3, 5):
        part = slice(first, first + 3)
        some = Routing(weights=routed.weights[part].clone(), ids=routed.ids[part].clone())
        few = int4.Int8Rows(*(x8[part].clone() for x8 in rows))
        alone = fused_moe_int4_int8(few, some, experts, out_dtype=torch.float32)
        assert torch.equal(alone, together[part])


@pytest.mark.parametrize("batch", [8, 33], ids="T{}".format)
def test_a_row_agrees_with_itself_in_a_batch(batch: int, experts: Int4Experts) -> None:
    x, routed = torch.randn(batch, HIDDEN, device=CUDA), routing(batch, SLOTS, 33, CUDA)
    rows = int4.quantize_activation(x, group_size=128)
    together = fused_moe_int4_int8(rows, routed, experts, out_dtype=torch.float32)
    for t in (0, batch // 2, batch - 1):
        one = int4.Int8Rows(*(part[t : t + 1].clone() for part in rows))
        alone = Routing(weights=routed.weights[t : t + 1].clone(), ids=routed.ids[t : t + 1].clone())
        single = fused_moe_int4_int8(one, alone, experts, out_dtype=torch.float32)
        assert_close(single[0], together[t], "int8")


def test_many_tokens_pass_two_to_the_31() -> None:
    # 262,144 tokens of 8 slots make 2³² outputs before the sum over slots.
    tokens, experts = 262_144, table(16, HIDDEN, WIDTH, 128, CUDA)
    x = torch.randn(tokens, HIDDEN, device=CUDA, dtype=torch.bfloat16)
    ids = torch.randint(0, 16, (tokens, 8), dtype=torch.int32, device=CUDA)
    routed = Routing(weights=torch.rand(tokens, 8, device=CUDA), ids=ids)
    rows = int4.quantize_activation(x, group_size=128)
    check_rows(fused_moe_int4_int8(rows, routed, experts, out_dtype=torch.bfloat16), x, routed, experts, "int8")


@pytest.mark.parametrize("tokens", [1, 40], ids="T{}".format)
def test_last_expert_of_a_table_past_two_to_the_31(tokens: int) -> None:
    count, group = 2100, 128
    gate_up = torch.zeros(count, 2 * WIDTH, HIDDEN // 2, dtype=torch.uint8, device=CUDA)
    down = torch.zeros(count, HIDDEN, WIDTH // 2, dtype=torch.uint8, device=CUDA)
    scales = [torch.ones(*w.shape[:2], 2 * w.shape[2] // group, device=CUDA).bfloat16() for w in (gate_up, down)]
    last = table(1, HIDDEN, WIDTH, group, CUDA)
    for whole, part in zip((gate_up, scales[0], down, scales[1]), astuple(last), strict=True):
        whole[-1] = part[0]
    experts = Int4Experts(gate_up=gate_up, gate_up_scales=scales[0], down=down, down_scales=scales[1])
    x = torch.randn(tokens, HIDDEN, device=CUDA).bfloat16()
    rows = int4.quantize_activation(x, group_size=group)
    ids = torch.full((tokens, 1), count - 1, dtype=torch.int32, device=CUDA)
    routed = Routing(weights=torch.ones(tokens, 1, device=CUDA), ids=ids)
    alone = Routing(weights=routed.weights, ids=torch.zeros_like(ids))
    out = fused_moe_int4_int8(rows, routed, experts, out_dtype=torch.bfloat16)
    assert_close(out, expected(x, alone, last, None), "int8")
    assert_close(fused_moe_int4(x, routed, experts), expected(x, alone, last, None), "bfloat16")


@pytest.mark.parametrize("tokens", [1, 2, 31, 33, 700, 1341], ids="T{}".format)
def test_router(tokens: int) -> None:
    x = torch.randn(tokens, HIDDEN, device=CUDA)
    weight = torch.randn(257, HIDDEN, device=CUDA).bfloat16() / 45
    gain = torch.randn(HIDDEN, device=CUDA).bfloat16() * 0.1
    routed, rows = rms_norm_router_int8(x, gain, 1e-6, weight, top_k=8, shared_experts=1, group_size=128)
    want = reference.rms_norm_router_int8(x, gain, 1e-6, weight, 8, 1, 128)
    # Two logits closer than their rounding may change places.
    assert int((routed.ids != want[1]).sum()) <= 2 * max(1, tokens // 200)
    assert_close(routed.weights, want[0], "float32")
    assert_close(int4.dequantize_activation(rows.values, rows.scale), int4.dequantize_activation(*want[2:4]), "int8")


def test_equal_logits_go_to_the_lower_index() -> None:
    for tokens in (1, 100):
        weight = torch.randn(32, HIDDEN, device=CUDA).bfloat16().repeat(8, 1) / 45
        routed = moe_router(torch.randn(tokens, HIDDEN, device=CUDA).bfloat16(), weight, top_k=8)
        assert bool((routed.ids[:, 1:] - routed.ids[:, :-1] == 32).all())


@pytest.mark.parametrize("pairs", [65_535, 65_536, 65_537], ids="P{}".format)
def test_align_many_pairs(pairs: int) -> None:
    ids = torch.randint(-1, 257, (pairs, 1), dtype=torch.int32, device=CUDA)
    outputs = moe_align_block_size(ids, block_size=64, num_experts=256)
    for output, want in zip(outputs, reference.moe_align_block_size(ids, 64, 256), strict=True):
        assert torch.equal(output, want)


@pytest.mark.parametrize("tokens", [1, 100], ids="T{}".format)
def test_graph_replays(tokens: int, experts: Int4Experts) -> None:
    x, gain = torch.randn(tokens, HIDDEN, device=CUDA).bfloat16(), torch.randn(HIDDEN, device=CUDA).bfloat16()
    router = torch.randn(33, HIDDEN, device=CUDA).bfloat16() / 45

    def layer() -> torch.Tensor:
        routed, rows = rms_norm_router_int8(x, gain, 1e-6, router, top_k=8, shared_experts=1, group_size=128)
        return fused_moe_int4_int8(rows, routed, experts, x, out_dtype=torch.bfloat16)

    layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer()
    held = []
    for step in range(100):
        held.append(torch.full((torch.randint(1, 1 << 18, ()).item(),), float("nan"), device=CUDA))
        if step % 3 == 0:
            held.clear()
        x.copy_(torch.randn(tokens, HIDDEN, device=CUDA))
        graph.replay()
        replayed = out.clone()
        assert torch.equal(replayed, layer()), f"replay {step}"


def test_operators() -> None:
    experts, routed = table(3, 128, 64, 64, CUDA), routing(20, 2, 3, CUDA)
    x = torch.randn(20, 128, device=CUDA).bfloat16()
    weights, rows = routed.weights.nan_to_num(), int4.quantize_activation(x, group_size=64)
    router = torch.randn(4, 128, device=CUDA).bfloat16()
    check_operator("moe_router", x, router, 2, 1)
    check_operator("rms_norm_router_int8", x, torch.randn(128, device=CUDA), 1e-6, router, 2, 1, 64)
    check_operator("moe_align_block_size", routed.ids, 16, 3)
    check_operator("fused_moe_int4", x, weights, routed.ids, *astuple(experts), x)
    check_operator("fused_moe_int4_int8", *rows, weights, routed.ids, *astuple(experts), None, torch.bfloat16)


def test_layer_compiles_whole(experts: Int4Experts) -> None:
    router, gain = torch.randn(33, HIDDEN, device=CUDA).bfloat16(), torch.randn(HIDDEN, device=CUDA).bfloat16()

    def layer(x: torch.Tensor) -> torch.Tensor:
        routed, rows = rms_norm_router_int8(x, gain, 1e-6, router, top_k=8, shared_experts=1, group_size=128)
        return fused_moe_int4_int8(rows, routed, experts, x, out_dtype=torch.bfloat16) * 2

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for tokens in (3, 50):
        x = torch.randn(tokens, HIDDEN, device=CUDA).bfloat16()
        assert_close(compiled(x), layer(x), "bfloat16")
