"""Benchmarks of the gated delta rule at the shapes of a 35B model (16 key heads, 32 value heads of 128)."""

import torch
from cuda_kernels.gated_delta_rule import net_reference, reference
from cuda_kernels.gated_delta_rule.layout import DeltaNetShape, DeltaNetState, DeltaNetWeights, HeadNorm
from cuda_kernels.gated_delta_rule.net_op import gated_delta_net_decode, gated_delta_net_prefill
from cuda_kernels.gated_delta_rule.op import chunk_gated_delta_rule
from cuda_kernels.testing import bound
from registry import Benchmark, Work
from timing import copies_past_l2
from torch.nn.functional import normalize

SHAPE = DeltaNetShape(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_width=4)
STATE_NUMEL = SHAPE.key_dim * SHAPE.out_width
TOKENS = (64, 512, 1341, 4096, 8192)


def build_decode(rows: int) -> Work:
    """The states rotate past the L2; the projection stays in it, as the product before it leaves it there."""
    x, slots, weights = _cuda(rows, SHAPE.projection_width), torch.arange(rows, device="cuda"), _weights()
    positions = slots + SHAPE.conv_width
    # Of the ring all entries are read but one, which is written.
    nbytes = rows * (2 * STATE_NUMEL * 4 + _conv_state(1).nbytes)
    copies = copies_past_l2(nbytes)
    states = [_state(rows) for _ in range(copies)]
    fresh = _clone(states[0])
    return Work(
        ours=lambda i: gated_delta_net_decode(x, weights, states[i], positions, slots),
        expected=lambda: net_reference.decode(x, weights, _clone(fresh), positions, slots),
        bound=bound(torch.bfloat16),
        copies=copies,
        nbytes=nbytes + x.nbytes,
    )


def build_prefill(tokens: int) -> Work:
    x, weights, state = _cuda(tokens, SHAPE.projection_width), _weights(), _state(1)
    norm = HeadNorm(weight=_cuda(SHAPE.value_dim), eps=1e-6)
    start, slot = torch.tensor([0], device="cuda"), torch.tensor([0], device="cuda")
    return Work(
        ours=lambda i: gated_delta_net_prefill(x, weights, norm, state, start, slot),
        expected=lambda: net_reference.prefill(x, weights, norm, _clone(state), start, slot),
        bound=bound(torch.bfloat16),
        copies=1,
        nbytes=x.nbytes + tokens * SHAPE.out_width * 2 + STATE_NUMEL * 4,
        flops=_flops(tokens),
    )


def build_chunk(tokens: int) -> Work:
    q, k = (normalize(_cuda(tokens, SHAPE.key_heads, SHAPE.key_dim), dim=-1) for _ in range(2))
    q = q * SHAPE.key_dim**-0.5
    v = _cuda(tokens, SHAPE.value_heads, SHAPE.value_dim)
    g = -(torch.rand(tokens, SHAPE.value_heads, device="cuda") ** 4)
    beta = torch.rand_like(g)
    return Work(
        ours=lambda i: chunk_gated_delta_rule(q, k, v, g, beta),
        expected=lambda: reference.chunk_gated_delta_rule(*(t.float() for t in (q, k, v, g, beta)))[0],
        bound=bound(torch.bfloat16),
        copies=1,
        nbytes=sum(t.nbytes for t in (q, k, v, v, g, beta)) + STATE_NUMEL * 4,
        flops=_flops(tokens),
        competitors={"torch eager": lambda i: reference.chunk_gated_delta_rule(q, k, v, g, beta)},
    )


def _flops(tokens: int) -> float:
    """Return the work of the rule itself: to read, to correct and to ask the state of each head for each token."""
    return 3 * 2 * tokens * STATE_NUMEL


def _cuda(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def _weights() -> DeltaNetWeights:
    return DeltaNetWeights(
        conv_weight=_cuda(SHAPE.channels, SHAPE.conv_width) * 0.5,
        a_log=torch.rand(SHAPE.value_heads, device="cuda") * 2 - 2,
        dt_bias=torch.randn(SHAPE.value_heads, device="cuda"),
        key_heads=SHAPE.key_heads,
    )


def _conv_state(slots: int) -> torch.Tensor:
    sizes = (slots, SHAPE.value_heads, SHAPE.conv_width, SHAPE.head_channels)
    return torch.zeros(sizes, dtype=torch.bfloat16, device="cuda")


def _state(slots: int) -> DeltaNetState:
    sizes = (slots, SHAPE.value_heads, SHAPE.key_dim, SHAPE.value_dim)
    return DeltaNetState(conv=_conv_state(slots), recurrent=torch.randn(sizes, device="cuda") * 0.1)


def _clone(state: DeltaNetState) -> DeltaNetState:
    return DeltaNetState(conv=state.conv.clone(), recurrent=state.recurrent.clone())


BENCHMARKS = (
    Benchmark(
        name="gated_delta_net_decode",
        shapes={f"B{rows}": {"rows": rows} for rows in (1, 4, 16)},
        build=build_decode,
    ),
    Benchmark(
        name="gated_delta_net_prefill",
        shapes={f"T{tokens}": {"tokens": tokens} for tokens in TOKENS},
        build=build_prefill,
    ),
    Benchmark(
        name="chunk_gated_delta_rule", shapes={f"T{tokens}": {"tokens": tokens} for tokens in TOKENS}, build=build_chunk
    ),
)
