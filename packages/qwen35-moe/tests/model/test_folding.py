"""Routers multiplied out with the projections before them."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.testing import random_int4
from qwen35_moe.model import Int4, ModelFormat
from qwen35_moe.model.folding import DTYPE, fold_router, with_folded_routers

HIDDEN, MIXED, EXPERTS = 64, 96, 5
INT8 = ModelFormat(dtype=torch.float32, int4=Int4(group_size=32, activations="int8"))


def parts() -> dict[str, torch.Tensor]:
    weight, scales = random_int4(HIDDEN, MIXED, group_size=32)
    return {
        "mixer.out_proj.weight": weight,
        "mixer.out_proj.scales": scales,
        "moe.norm": 0.2 * torch.randn(HIDDEN),
        "moe.router": torch.randn(EXPERTS, HIDDEN) / HIDDEN**0.5,
    }


def test_logits_of_residual_and_row_are_those_of_their_sum() -> None:
    weight, scales, norm, router = parts().values()
    residual, x = torch.randn(3, HIDDEN), torch.randn(3, MIXED)
    folded = fold_router(router, norm, weight, scales)
    assert folded.dtype == DTYPE
    hidden = residual + x @ int4.dequantize(weight, scales, dtype=torch.float32).T
    expected = (hidden * (1 + norm)) @ router.T
    given = torch.cat((residual, x), 1) @ folded.float().T
    assert float((given - expected).norm() / expected.norm()) <= 2e-3


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_a_router_follows_its_parts_in_any_order(backwards: bool) -> None:
    layers = [(f"layers.{i}.{part}", tensor) for i in range(2) for part, tensor in parts().items()]
    layers.insert(0, ("embedding", torch.zeros(1)))
    given = dict(with_folded_routers(iter(layers[::-1] if backwards else layers), INT8))
    assert given.keys() == {*dict(layers), "layers.0.moe.folded", "layers.1.moe.folded"}
    for i in range(2):
        of_layer = [dict(layers)[f"layers.{i}.{part}"] for part in ("moe.router", "moe.norm")]
        projection = [dict(layers)[f"layers.{i}.mixer.out_proj.{part}"] for part in ("weight", "scales")]
        assert torch.equal(given[f"layers.{i}.moe.folded"], fold_router(*of_layer, *projection))


@pytest.mark.parametrize("form", [None, Int4(group_size=32)], ids=["dense", "float"])
def test_other_formats_have_none(form: Int4 | None) -> None:
    weights = list(parts().items())
    assert list(with_folded_routers(iter(weights), ModelFormat(dtype=torch.float32, int4=form))) == weights
