"""The linear operators on a GPU: real shapes, offsets past 2³¹, graph capture, torch.compile over a layer."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.linear import launch
from cuda_kernels.linear.norm_op import rms_norm_gated_int4_linear_int8, rms_norm_int4_linear_int8
from cuda_kernels.linear.op import int4_linear, int4_linear_int8, quantize_int8
from cuda_kernels.norm import reference as norm
from cuda_kernels.norm.op import rms_norm_int8
from cuda_kernels.testing import assert_close, check_operator, poisoned, random_int4, random_tensor

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
TOKENS = [*range(1, 131), 255, 256, 257, 1341, 4095]
MATRICES = [(12352, 2048, 128), (2048, 4096, 128), (9216, 2048, 64), (2048, 512, 32), (1000, 2080, 32)]


def product(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.double() @ int4.dequantize(weight, scales, dtype=dtype).double().T


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: "N{}-K{}-g{}".format(*m))
def test_every_token_count(matrix: tuple[int, int, int]) -> None:
    outputs, columns, group = matrix
    weight, scales = random_int4(outputs, columns, group_size=group, device=CUDA)
    x_all = random_tensor(TOKENS[-1], columns, dtype=torch.bfloat16, device=CUDA)
    residual_all = random_tensor(TOKENS[-1], outputs, dtype=torch.bfloat16, device=CUDA)
    exact = product(x_all, weight, scales, torch.float64)
    rounded = product(x_all, weight, scales, torch.bfloat16)
    for tokens in TOKENS:
        x, residual = x_all[:tokens], residual_all[:tokens]
        out = poisoned((tokens, outputs), torch.bfloat16, CUDA)
        launch.int4_linear(x, weight, scales, residual, None, out=out)
        assert_close(out, rounded[:tokens] + residual.double(), torch.bfloat16)
        rows = quantize_int8(x, group_size=group)
        out = poisoned((tokens, outputs), torch.bfloat16, CUDA)
        launch.int4_linear_int8(*rows, weight, scales, residual, torch.bfloat16, out=out)
        assert_close(out, exact[:tokens] + residual.double(), "int8")


@pytest.mark.parametrize("tokens", [1, 3, 40], ids="T{}".format)
@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: "N{}-K{}-g{}".format(*m))
def test_norm_and_product(matrix: tuple[int, int, int], tokens: int) -> None:
    outputs, columns, group = matrix
    weight, scales = random_int4(outputs, columns, group_size=group, device=CUDA)
    x, gate = (random_tensor(tokens, columns, dtype=torch.bfloat16, device=CUDA) for _ in range(2))
    gain, residual = (random_tensor(*n, dtype=torch.bfloat16, device=CUDA) for n in ((columns,), (tokens, outputs)))
    plain = (x, gain, 1e-6, weight, scales)
    exact = product(norm.rms_norm(x.double(), gain, 1e-6, True), weight, scales, torch.float64)
    assert_close(rms_norm_int4_linear_int8(*plain, out_dtype=torch.bfloat16), exact, "int8")
    gated = (x, gate, gain[:32], 1e-6, weight, scales)
    exact = product(norm.rms_norm_gated(x.double(), gate, gain[:32], 1e-6), weight, scales, torch.float64)
    out = rms_norm_gated_int4_linear_int8(*gated, out_dtype=torch.bfloat16, residual=residual)
    assert_close(out, exact + residual.double(), "int8")
    check_operator("rms_norm_int4_linear_int8", *plain, torch.bfloat16)
    check_operator("rms_norm_gated_int4_linear_int8", *gated, residual, torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 20], ids=["T1", "T20"])
def test_weights_past_two_gigabytes(rows: int) -> None:
    outputs, columns = 2**21 + 64, 2048
    weight = torch.randint(0, 256, (outputs, columns // 2), dtype=torch.uint8, device=CUDA)
    scales = torch.full((outputs, columns // 128), 0.01, dtype=torch.bfloat16, device=CUDA)
    x = random_tensor(rows, columns, dtype=torch.bfloat16, device=CUDA)
    quantized = quantize_int8(x, group_size=128)
    for result, arithmetic in (
        (int4_linear(x, weight, scales), "bfloat16"),
        (int4_linear_int8(quantized, weight, scales, out_dtype=torch.bfloat16), "int8"),
    ):
        for part in (slice(0, 64), slice(outputs - 64, outputs)):
            assert_close(result[:, part], product(x, weight[part], scales[part], torch.bfloat16), arithmetic)


def test_results_past_two_billion_elements() -> None:
    tokens, outputs, columns = 180_000, 12_352, 128
    weight, scales = random_int4(outputs, columns, group_size=128, device=CUDA)
    x = random_tensor(tokens, columns, dtype=torch.bfloat16, device=CUDA)
    last = slice(tokens - 64, tokens)
    expected = product(x[last], weight, scales, torch.bfloat16)
    assert_close(int4_linear(x, weight, scales)[last], expected, torch.bfloat16)
    out = poisoned((tokens, outputs), torch.bfloat16, CUDA)
    launch.matmul(x, weight, scales, None, out)
    assert_close(out[last], expected, torch.bfloat16)


@pytest.mark.parametrize("tokens", [1, 16, 200], ids=lambda t: f"T{t}")
def test_capture_and_a_hundred_replays(tokens: int) -> None:
    weight, scales = random_int4(2048, 4096, group_size=128, device=CUDA)
    gain = random_tensor(4096, dtype=torch.bfloat16, device=CUDA)
    x = random_tensor(tokens, 4096, dtype=torch.bfloat16, device=CUDA)

    def step() -> torch.Tensor:
        rows = rms_norm_int8(x, gain, 1e-6, group_size=128)
        return int4_linear_int8(rows, weight, scales, out_dtype=torch.bfloat16)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for _ in range(100):
        x.copy_(random_tensor(tokens, 4096, dtype=torch.bfloat16, device=CUDA))
        churn = [poisoned((n << 18,), torch.uint8, CUDA) for n in (1, 7, 3)]
        expected = step()
        graph.replay()
        assert torch.equal(out, expected)
        del churn, expected


def test_compiled_layer_equals_eager() -> None:
    weight, scales = random_int4(256, 256, group_size=64, device=CUDA)
    gain = random_tensor(256, dtype=torch.bfloat16, device=CUDA)

    def layer(x: torch.Tensor) -> torch.Tensor:
        rows = rms_norm_int8(x, gain, 1e-6, group_size=64)
        return int4_linear_int8(rows, weight, scales, out_dtype=torch.bfloat16, residual=x) * 2.0

    x = random_tensor(5, 256, dtype=torch.bfloat16, device=CUDA)
    assert torch.equal(torch.compile(layer, fullgraph=True)(x), layer(x))
