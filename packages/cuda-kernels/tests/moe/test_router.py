"""The router kernels against the reference: ids exactly, weights and quantized rows within bounds, equal logits."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.moe import reference
from cuda_kernels.moe.configs import RouterConfig
from cuda_kernels.moe.routing_launch import NormInt8, launch_router
from cuda_kernels.testing import assert_close, poisoned

ROWWISE = RouterConfig(rowwise=True, block=2, warps=1)
BLOCKWISE = RouterConfig(rowwise=False, block=16, warps=4)
CONFIGS = pytest.mark.parametrize("config", [ROWWISE, BLOCKWISE], ids=["rows", "blocks"])


def route(
    x: torch.Tensor, weight: torch.Tensor, top_k: int, shared: int, config: RouterConfig, norm: NormInt8 | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (x.shape[0], top_k + shared)
    weights, ids = poisoned(shape, torch.float32, x.device), poisoned(shape, torch.int32, x.device)
    launch_router(x, weight, top_k, shared, weights, ids, norm, config)
    return weights, ids


@CONFIGS
@pytest.mark.parametrize(
    ("tokens", "experts", "hidden", "top_k", "shared"),
    [(0, 4, 64, 2, 1), (1, 16, 128, 4, 1), (5, 7, 64, 7, 0), (3, 33, 192, 8, 2)],
    ids=["T0", "T1-E16-H128-k4", "T5-E7-H64-k7", "T3-E33-H192-k8-s2"],
)
def test_equals_reference(
    tokens: int, experts: int, hidden: int, top_k: int, shared: int, config: RouterConfig, device: torch.device
) -> None:
    x = torch.randn(tokens, hidden, device=device)
    weight = torch.randn(experts + (1 if shared else 0), hidden, device=device) / hidden**0.5
    weights, ids = route(x, weight, top_k, shared, config)
    expected_weights, expected_ids = reference.moe_router(x, weight, top_k, shared)
    assert torch.equal(ids, expected_ids)
    assert_close(weights, expected_weights, "float32")


@CONFIGS
@pytest.mark.parametrize("group", [32, 64], ids="group{}".format)
def test_norm_and_quantization(group: int, config: RouterConfig, device: torch.device) -> None:
    x, gain = torch.randn(3, 192, device=device), torch.randn(192, device=device) * 0.2
    weight = torch.randn(9, 192, device=device) / 14
    expected = reference.rms_norm_router_int8(x, gain, 1e-6, weight, 4, 1, group)
    values, scale, group_sum = (poisoned(t.shape, t.dtype, device) for t in expected[2:])
    norm = NormInt8(weight=gain, eps=1e-6, values=values, scale=scale, group_sum=group_sum)
    weights, ids = route(x, weight, 4, 1, config, norm)
    assert torch.equal(ids, expected[1])
    assert_close(weights, expected[0], "float32")
    assert_close(scale, expected[3], "float32")
    assert_close(int4.dequantize_activation(values, scale), int4.dequantize_activation(*expected[2:4]), "int8")
    assert_close(group_sum, int4.dequantize_activation(values, scale).unflatten(1, (-1, group)).sum(-1), "float32")


@CONFIGS
def test_equal_logits_go_to_the_lower_index(config: RouterConfig, device: torch.device) -> None:
    # Rows repeat, so logits tie in threes; the last token ties everything, at 0.0 and -0.0.
    weight = torch.randn(4, 64, device=device).repeat(3, 1)
    x = torch.cat((torch.randn(4, 64, device=device), torch.zeros(1, 64, device=device)))
    weight[5] = -weight[5].abs()
    weights, ids = route(x, weight, 6, 0, config)
    expected_weights, expected_ids = reference.moe_router(x, weight, 6, 0)
    assert torch.equal(ids, expected_ids)
    assert ids[4].tolist() == [0, 1, 2, 3, 4, 5]
    assert_close(weights, expected_weights, "float32")


def test_nan_logits_come_first(device: torch.device) -> None:
    weight = torch.eye(4, 32, device=device)
    x = torch.zeros(1, 32, device=device)
    weight[2, 0] = float("nan")
    _, ids = route(x, weight, 2, 0, ROWWISE)
    assert ids.tolist() == [[2, 0]]
