"""Benchmarks of the mixture of experts at the shapes of a 35B model: 256 experts, 8 a token and a shared one, int4.

The sweep over prompt lengths runs the int8 operator against four others: a loop over tokens, gathered weights in one
batched product (eager and compiled), and torch's grouped product over dequantized bf16 weights.
"""

from dataclasses import dataclass
from typing import Any

import torch
from cuda_kernels import int4
from cuda_kernels.moe import op, reference, routing_op
from cuda_kernels.moe.layout import Int4Experts, Routing
from cuda_kernels.testing import bound, random_int4, random_tensor
from registry import Benchmark, Work
from torch.nn import functional

EXPERTS, TOP_K, HIDDEN, WIDTH, GROUP = 256, 8, 2048, 512, 128
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1341, 2048, 4095)
COPIES = 4  # of 415 MB each; few tokens use little of a table, so they take more
LOOP_TOKENS = 16
EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows, a routing for each copy, and copies of an expert table, on the GPU."""

    x: torch.Tensor
    routings: list[Routing]
    tables: list[Int4Experts]

    def used(self) -> int:
        """Return how many experts the first routing reads."""
        return int(self.routings[0].ids.unique().numel())

    def cost(self) -> dict[str, Any]:
        """Return the floor's bytes and operations, and the number of copies."""
        table = self.tables[0]
        expert = sum(getattr(table, name)[0].nbytes for name in Int4Experts.__slots__)
        pairs = self.routings[0].ids.numel()
        return {
            "nbytes": self.used() * expert + 2 * self.x.nbytes,
            "flops": 2.0 * pairs * 3 * HIDDEN * WIDTH,
            "copies": len(self.tables),
        }

    def expected(self) -> torch.Tensor:
        """Return the products with the first copy in float32, an expert at a time."""
        table, routed = self.tables[0], self.routings[0]
        return reference.fused_moe_int4(self.x.to(torch.float32), routed, table, None)


def routing(tokens: int) -> Routing:
    """Return a random routing, the shared expert last."""
    chosen = torch.rand(tokens, EXPERTS, device="cuda").topk(TOP_K, dim=1)
    weights = torch.softmax(4 * chosen.values, dim=1)
    shared = torch.full((tokens, 1), EXPERTS, device="cuda")
    ids = torch.cat((chosen.indices, shared), 1).to(torch.int32)
    return Routing(weights=torch.cat((weights, torch.rand(tokens, 1, device="cuda")), 1).contiguous(), ids=ids)


def problem(tokens: int) -> Problem:
    """Return random rows and enough copies to pass the L2."""
    copies = 8 if tokens <= 8 else COPIES
    gate_up, gate_up_scales = random_int4(1, 2 * WIDTH, HIDDEN, group_size=GROUP, device="cuda")
    down, down_scales = random_int4(1, HIDDEN, WIDTH, group_size=GROUP, device="cuda")

    def table() -> Int4Experts:
        shape = (EXPERTS + 1, 1, 1)
        return Int4Experts(
            gate_up=torch.randint_like(gate_up.expand(EXPERTS + 1, -1, -1).contiguous(), 256),
            gate_up_scales=gate_up_scales.repeat(shape),
            down=torch.randint_like(down.expand(EXPERTS + 1, -1, -1).contiguous(), 256),
            down_scales=down_scales.repeat(shape),
        )

    x = random_tensor(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")
    return Problem(x=x, routings=[routing(tokens) for _ in range(copies)], tables=[table() for _ in range(copies)])


def gathered(x: torch.Tensor, routed: Routing, table: Int4Experts) -> torch.Tensor:
    """Return the products by gathering and dequantizing the weights of every pair: vectorized, without a kernel."""
    ids = routed.ids.to(torch.int64)
    w1 = int4.dequantize(table.gate_up[ids], table.gate_up_scales[ids], dtype=x.dtype)
    w2 = int4.dequantize(table.down[ids], table.down_scales[ids], dtype=x.dtype)
    gate, up = torch.einsum("tknh,th->tkn", w1, x).chunk(2, dim=-1)
    y = torch.einsum("tkhn,tkn->tkh", w2, functional.silu(gate) * up)
    return (y * routed.weights.unsqueeze(-1)).sum(1).to(x.dtype)


def looped(x: torch.Tensor, routed: Routing, table: Int4Experts) -> torch.Tensor:
    """Return the products one token at a time."""
    rows = [
        gathered(x[t : t + 1], Routing(weights=routed.weights[t : t + 1], ids=routed.ids[t : t + 1]), table)
        for t in range(x.shape[0])
    ]
    return torch.cat(rows)


def grouped(x: torch.Tensor, routed: Routing, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    """Return the products by torch's grouped product of bf16 weights w1 (E, 2I, H) and w2 (E, H, I)."""
    slots = routed.ids.shape[1]
    experts, order = routed.ids.flatten().sort(stable=True)
    ends = torch.searchsorted(experts, torch.arange(w1.shape[0], device=x.device, dtype=torch.int32), right=True)
    offsets = ends.to(torch.int32)
    gate, up = functional.grouped_mm(x[order // slots], w1.transpose(1, 2), offs=offsets).chunk(2, dim=-1)
    y = functional.grouped_mm(functional.silu(gate) * up, w2.transpose(1, 2), offs=offsets)
    pairs = torch.empty_like(y)
    pairs[order] = y
    return (pairs.unflatten(0, (-1, slots)) * routed.weights.unsqueeze(-1)).sum(1).to(x.dtype)


def fused_int8(tokens: int) -> Work:
    """Return the int8 operator at `tokens`, and its competitors."""
    p = problem(tokens)
    rows = int4.quantize_activation(p.x, group_size=GROUP)
    compiled = torch.compile(gathered, fullgraph=True, dynamic=False)
    dense = [
        (
            int4.dequantize(table.gate_up, table.gate_up_scales, dtype=torch.bfloat16),
            int4.dequantize(table.down, table.down_scales, dtype=torch.bfloat16),
        )
        for table in p.tables
    ]
    competitors = {
        "eager": lambda i: gathered(p.x, p.routings[i], p.tables[i]),
        "compiled": lambda i: compiled(p.x, p.routings[i], p.tables[i]),
        "torch grouped bf16": lambda i: grouped(p.x, p.routings[i], *dense[i]),
    }
    if tokens <= LOOP_TOKENS:
        competitors["loop"] = lambda i: looped(p.x, p.routings[i], p.tables[i])
    return Work(
        ours=lambda i: op.fused_moe_int4_int8(rows, p.routings[i], p.tables[i], out_dtype=torch.bfloat16),
        expected=p.expected,
        bound=bound("int8"),
        competitors=competitors,
        **p.cost(),
    )


def fused_float(tokens: int) -> Work:
    """Return the operator with bf16 rows at `tokens`."""
    p = problem(tokens)
    return Work(
        ours=lambda i: op.fused_moe_int4(p.x, p.routings[i], p.tables[i]),
        expected=p.expected,
        bound=bound(torch.bfloat16),
        **p.cost(),
    )


def routed_int8(tokens: int) -> Work:
    """Return the operator of a decode step, which norms, chooses by logits and adds its input, at `tokens`."""
    p = problem(tokens)
    gain = random_tensor(HIDDEN, dtype=torch.bfloat16, device="cuda", scale=0.1)
    logits = [4 * torch.randn(tokens, EXPERTS + 1, device="cuda") for _ in p.tables]
    inverse = torch.rsqrt(p.x.float().square().mean(1, keepdim=True) + EPS)
    routings = [reference.choose(row * inverse, TOP_K, 1) for row in logits]
    routed = Problem(x=p.x, routings=[Routing(weights=w, ids=ids) for w, ids in routings], tables=p.tables)

    def expected() -> torch.Tensor:
        return reference.routed_moe_int4_int8(p.x, gain, EPS, logits[0], p.tables[0], TOP_K, 1)

    def ours(i: int) -> torch.Tensor:
        return op.routed_moe_int4_int8(p.x, gain, EPS, logits[i], p.tables[i], top_k=TOP_K, shared_experts=1)

    return Work(ours=ours, expected=expected, bound=bound("int8"), **routed.cost())


def router(tokens: int) -> Work:
    """Return the router with top-8 and the shared expert's gate, with the norm and quantization before it."""
    x = random_tensor(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")
    gain = random_tensor(HIDDEN, dtype=torch.bfloat16, device="cuda", scale=0.1)
    copies = 64
    weights = [
        random_tensor(EXPERTS + 1, HIDDEN, dtype=torch.bfloat16, device="cuda", scale=HIDDEN**-0.5)
        for _ in range(copies)
    ]

    def ours(i: int) -> torch.Tensor:
        routed, _ = routing_op.rms_norm_router_int8(
            x, gain, 1e-6, weights[i], top_k=TOP_K, shared_experts=1, group_size=GROUP
        )
        return routed.weights

    def expected() -> torch.Tensor:
        return reference.rms_norm_router_int8(x, gain, 1e-6, weights[0], TOP_K, 1, GROUP)[0]

    nbytes = weights[0].nbytes + x.nbytes + x.nbytes // 2
    flops = 2.0 * tokens * HIDDEN * (EXPERTS + 1)
    return Work(ours=ours, expected=expected, bound=bound("float32"), copies=copies, nbytes=nbytes, flops=flops)


def align(tokens: int) -> Work:
    """Return the alignment of pairs to experts in blocks of 64, against a stable sort by torch."""
    ids = routing(tokens).ids
    pairs = ids.numel()

    def ours(_: int) -> torch.Tensor:
        return routing_op.moe_align_block_size(ids, block_size=64, num_experts=EXPERTS + 1)[0]

    def expected() -> torch.Tensor:
        return reference.moe_align_block_size(ids, 64, EXPERTS + 1)[0]

    return Work(ours=ours, expected=expected, bound=0.0, copies=2, nbytes=8 * pairs)


def _shapes(tokens: tuple[int, ...]) -> dict[str, dict[str, int]]:
    return {f"T{count}": {"tokens": count} for count in tokens}


BENCHMARKS = (
    Benchmark(name="moe.fused_int4_int8", shapes=_shapes(TOKENS), build=fused_int8),
    Benchmark(name="moe.routed_int8", shapes=_shapes((1, 2, 4, 8, 16)), build=routed_int8),
    Benchmark(name="moe.fused_int4", shapes=_shapes((1, 4, 16, 64, 512, 1341, 4095)), build=fused_float),
    Benchmark(name="moe.norm_router_int8", shapes=_shapes((1, 16, 64, 1341, 4095)), build=router),
    Benchmark(name="moe.align", shapes=_shapes((1, 64, 1341, 4095)), build=align),
)
