"""Benchmarks of the norms and of the int8 quantization, against torch's RMS norm."""

import torch
from cuda_kernels import int4
from cuda_kernels.linear.op import quantize_int8
from cuda_kernels.norm import reference
from cuda_kernels.norm.op import rms_norm, rms_norm_gated, rms_norm_int8
from cuda_kernels.testing import bound, random_tensor
from registry import Benchmark, Work

EPS = 1e-6
GROUP = 128
HEAD = 128
COPIES = 2  # rows this short come from the L2 in a model too


def build_rms_norm(tokens: int, size: int) -> Work:
    x, weight = _rows(tokens, size), _rows(1, size)[0]
    gain = 1 + weight
    return Work(
        ours=lambda i: rms_norm(x, weight, EPS),
        expected=lambda: reference.rms_norm(x.double(), weight.double(), EPS, True),
        bound=bound(torch.bfloat16),
        copies=COPIES,
        nbytes=2 * x.nbytes + weight.nbytes,
        competitors={"torch": lambda i: torch.nn.functional.rms_norm(x, (size,), gain, EPS)},
    )


def build_rms_norm_gated(tokens: int, size: int) -> Work:
    x, gate, weight = _rows(tokens, size), _rows(tokens, size), _rows(1, HEAD)[0]
    return Work(
        ours=lambda i: rms_norm_gated(x, gate, weight, EPS),
        expected=lambda: reference.rms_norm_gated(x, gate, weight, EPS),
        bound=bound(torch.bfloat16),
        copies=COPIES,
        nbytes=3 * x.nbytes + weight.nbytes,
        competitors={"torch eager": lambda i: reference.rms_norm_gated(x, gate, weight, EPS)},
    )


def build_rms_norm_int8(tokens: int, size: int) -> Work:
    x, weight = _rows(tokens, size), _rows(1, size)[0]
    return Work(
        ours=lambda i: rms_norm_int8(x, weight, EPS, group_size=GROUP),
        expected=lambda: reference.rms_norm_int8(x, weight, EPS, True, GROUP).values,
        bound=bound("int8"),
        copies=COPIES,
        nbytes=x.nbytes + weight.nbytes + x.numel() + 8 * x.numel() // GROUP,
        competitors={"torch eager": lambda i: reference.rms_norm_int8(x, weight, EPS, True, GROUP)},
    )


def build_quantize_int8(tokens: int, size: int) -> Work:
    x = _rows(tokens, size)
    return Work(
        ours=lambda i: quantize_int8(x, group_size=GROUP),
        expected=lambda: int4.quantize_activation(x, group_size=GROUP).values,
        bound=bound("int8"),
        copies=COPIES,
        nbytes=x.nbytes + x.numel() + 8 * x.numel() // GROUP,
        competitors={"torch eager": lambda i: int4.quantize_activation(x, group_size=GROUP)},
    )


def _rows(tokens: int, size: int) -> torch.Tensor:
    return random_tensor(tokens, size, dtype=torch.bfloat16, device="cuda")


def _shapes(size: int) -> dict[str, dict[str, int]]:
    return {f"T{tokens}-D{size}": {"tokens": tokens, "size": size} for tokens in (1, 16, 128, 1341, 4095)}


BENCHMARKS = (
    Benchmark(name="rms_norm", shapes=_shapes(2048), build=build_rms_norm),
    Benchmark(name="rms_norm_gated", shapes=_shapes(4096), build=build_rms_norm_gated),
    Benchmark(name="rms_norm_int8", shapes=_shapes(2048), build=build_rms_norm_int8),
    Benchmark(name="quantize_int8", shapes=_shapes(4096), build=build_quantize_int8),
)
