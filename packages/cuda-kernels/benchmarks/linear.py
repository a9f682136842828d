"""Benchmarks of the int4 linear layers at the shapes of a 35B model, against cuBLAS and torch's own int4 product."""

from dataclasses import dataclass
from typing import Any

import torch
from cuda_kernels import int4
from cuda_kernels.linear.norm_op import rms_norm_int4_linear_int8
from cuda_kernels.linear.op import int4_linear, int4_linear_int8, quantize_int8
from cuda_kernels.linear.routed_op import int4_linear_router_int8
from cuda_kernels.norm import reference as norm
from cuda_kernels.testing import bound, random_int4, random_tensor
from registry import Benchmark, Work
from timing import copies_past_l2

GROUP = 128
EPS = 1e-6

# Outputs and inputs: delta net in and out, attention in, output head.
MATRICES = ((12352, 2048), (2048, 4096), (9216, 2048), (248320, 2048))
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 1341, 4095)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows and copies of an int4 matrix, on the GPU."""

    x: torch.Tensor
    weights: list[tuple[torch.Tensor, torch.Tensor]]

    def expected(self) -> torch.Tensor:
        """Return the product with the first copy; in float32, since float64 of the largest does not fit."""
        weight, scales = self.weights[0]
        return self.x.float() @ int4.dequantize(weight, scales, dtype=torch.float32).T

    @property
    def cost(self) -> dict[str, Any]:
        """Return the floor's bytes and operations, and the number of copies."""
        (weight, scales), (tokens, columns) = self.weights[0], self.x.shape
        outputs = weight.shape[0]
        nbytes = weight.nbytes + scales.nbytes + self.x.nbytes + 2 * tokens * outputs
        return {"nbytes": nbytes, "flops": 2.0 * tokens * outputs * columns, "copies": len(self.weights)}


def problem(tokens: int, outputs: int, columns: int) -> Problem:
    """Return random rows and as many copies of the matrix as pass the L2."""
    first = random_int4(outputs, columns, group_size=GROUP, device="cuda")
    count = copies_past_l2(outputs * columns // 2, most=32)
    copies = [(torch.randint_like(first[0], 256), first[1].clone()) for _ in range(count - 1)]
    x = random_tensor(tokens, columns, dtype=torch.bfloat16, device="cuda")
    return Problem(x=x, weights=[first, *copies])


def competitors(p: Problem) -> dict[str, Any]:
    """Return cuBLAS in bfloat16 and torch's int4 kernel, each with as many copies as ours."""
    found: dict[str, Any] = {}
    # The bfloat16 copies are four times as large: two are enough to pass the L2.
    dense = [int4.dequantize(*pair, dtype=torch.bfloat16).T for pair in p.weights[:2]]
    found["cublas bf16"] = lambda i: p.x @ dense[i % 2]
    if p.x.shape[0] <= 64:
        packed = [_tinygemm(*pair) for pair in p.weights]
        found["torch int4"] = lambda i: torch.ops.aten._weight_int4pack_mm(p.x, packed[i][0], GROUP, packed[i][1])
    return found


def _tinygemm(weight: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # Its bytes have the even element in the high nibble, and its scales a zero point each.
    swapped = (weight << 4) | (weight >> 4)
    zeros = torch.zeros_like(scales)
    return torch.ops.aten._convert_weight_to_int4pack(swapped, 8), torch.stack((scales, zeros), -1).transpose(
        0, 1
    ).contiguous()


def build_int8(tokens: int, outputs: int, columns: int) -> Work:
    p = problem(tokens, outputs, columns)
    rows = quantize_int8(p.x, group_size=GROUP)
    return Work(
        ours=lambda i: int4_linear_int8(rows, *p.weights[i], out_dtype=torch.bfloat16),
        expected=p.expected,
        bound=bound("int8"),
        competitors=competitors(p),
        **p.cost,
    )


def build_bfloat16(tokens: int, outputs: int, columns: int) -> Work:
    p = problem(tokens, outputs, columns)
    return Work(
        ours=lambda i: int4_linear(p.x, *p.weights[i]),
        expected=p.expected,
        bound=bound(torch.bfloat16),
        competitors=competitors(p),
        **p.cost,
    )


def build_norm(outputs: int, columns: int) -> Work:
    """Return the product of one row that is normed first."""
    p = problem(1, outputs, columns)
    gain = random_tensor(columns, dtype=torch.bfloat16, device="cuda", scale=0.1)

    def expected() -> torch.Tensor:
        normed = norm.rms_norm(p.x.float(), gain, EPS, True)
        return normed @ int4.dequantize(*p.weights[0], dtype=torch.float32).T

    return Work(
        ours=lambda i: rms_norm_int4_linear_int8(p.x, gain, EPS, *p.weights[i], out_dtype=torch.bfloat16),
        expected=expected,
        bound=bound("int8"),
        **p.cost,
    )


def build_router(outputs: int, columns: int) -> Work:
    """Return the product of one row that is normed and gated first, its residual, and the logits of 257 experts."""
    p = problem(1, outputs, columns)
    x, gate = (random_tensor(1, columns, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    residual = random_tensor(1, outputs, dtype=torch.bfloat16, device="cuda")
    gain = random_tensor(GROUP, dtype=torch.bfloat16, device="cuda")
    routers = [random_tensor(257, outputs + columns, dtype=torch.float16, device="cuda", scale=0.02) for _ in p.weights]

    def expected() -> torch.Tensor:
        rows = norm.rms_norm_gated(x.float(), gate, gain, EPS)
        return residual.float() + rows @ int4.dequantize(*p.weights[0], dtype=torch.float32).T

    def ours(i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return int4_linear_router_int8(
            x, *p.weights[i], residual, routers[i], out_dtype=torch.bfloat16, gate=gate, norm_weight=gain, eps=EPS
        )

    cost = {**p.cost, "nbytes": p.cost["nbytes"] + routers[0].nbytes}
    return Work(ours=ours, expected=expected, bound=bound("int8"), **cost)


def _shapes() -> dict[str, dict[str, int]]:
    return {
        f"T{tokens}-N{outputs}-K{columns}": {"tokens": tokens, "outputs": outputs, "columns": columns}
        for outputs, columns in MATRICES
        for tokens in (TOKENS if outputs < 100_000 else (1, 16))
    }


def _one_row(*matrices: tuple[int, int]) -> dict[str, dict[str, int]]:
    return {f"T1-N{outputs}-K{columns}": {"outputs": outputs, "columns": columns} for outputs, columns in matrices}


BENCHMARKS = (
    Benchmark(name="int4_linear_int8", shapes=_shapes(), build=build_int8),
    Benchmark(name="int4_linear", shapes=_shapes(), build=build_bfloat16),
    Benchmark(name="rms_norm_int4_linear_int8", shapes=_one_row(MATRICES[0], MATRICES[2]), build=build_norm),
    Benchmark(name="int4_linear_router_int8", shapes=_one_row(MATRICES[1]), build=build_router),
)
