"""Routers multiplied out with the output projections before them, for decoding with int8 activations.

A layer's router R multiplies norm(r + W x), with r the residual and W the mixer's output projection. But for the norm's
scale that is R g r + (R g W) x, with g = 1 + the norm's weight: a matrix (R g, R g W) gives the logits of decoding
together with the projection, and not after it.
"""

from collections.abc import Iterator

import torch
from cuda_kernels import int4

from qwen35_moe.model.weights import ModelFormat

FOLDED = "moe.folded"
DTYPE = torch.float16  # three bits finer than bfloat16, and its range is wide enough for sums of products of weights
_PARTS = ("mixer.out_proj.weight", "mixer.out_proj.scales", "moe.norm", "moe.router")


def fold_router(
    router: torch.Tensor, norm: torch.Tensor, out_weight: torch.Tensor, out_scales: torch.Tensor
) -> torch.Tensor:
    """Return (E, H + K) float16 of a router (E, H), the norm (H,) before it, and an int4 projection (H, K)."""
    scaled = router.to(torch.float32) * (1 + norm.to(torch.float32))
    behind = scaled @ int4.dequantize(out_weight, out_scales, dtype=torch.float32)
    return torch.cat((scaled, behind), 1).to(DTYPE)


def with_folded_routers(
    weights: Iterator[tuple[str, torch.Tensor]], form: ModelFormat
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the named weights, and where `form` decodes by them each folded router, once its parts have passed."""
    if form.int8_group_size is None:
        yield from weights
        return
    parts: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        yield name, tensor
        part = next((part for part in _PARTS if name.endswith(part)), None)
        if part is None:
            continue
        parts[name] = tensor
        layer = name.removesuffix(part)
        names = [layer + part for part in _PARTS]
        if all(name in parts for name in names):
            weight, scales, norm, router = (parts.pop(name) for name in names)
            yield layer + FOLDED, fold_router(router, norm, weight, scales)
