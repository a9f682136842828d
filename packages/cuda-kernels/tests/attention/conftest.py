"""Attention problems: random tensors over a cache that holds NaN where nothing was written, and float64 results."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from cuda_kernels.attention.layout import HeadTransform, KeyValueCache
from cuda_kernels.testing import random_tensor


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A projection of some rows, the transform of its heads and a cache; sizes as in docs/operators.md."""

    qkv: torch.Tensor
    heads: HeadTransform
    cache: KeyValueCache

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        heads, cache = self.heads, self.cache
        return (self.qkv, heads.q_norm, heads.k_norm, heads.rope, cache.keys, cache.values)

    @property
    def parts(self) -> tuple[torch.Tensor, HeadTransform, KeyValueCache]:
        return self.qkv, self.heads, self.cache

    def clone(self) -> "Problem":
        return replace(self, cache=KeyValueCache(keys=self.cache.keys.clone(), values=self.cache.values.clone()))

    def fill(self, slot: int, count: int) -> None:
        """Put random keys and values at positions 0 … count - 1 of a slot."""
        for cache in (self.cache.keys, self.cache.values):
            live = cache[slot, :, :count]
            live.copy_(random_tensor(*live.shape, dtype=cache.dtype, device=cache.device))

    def rows(self, first: int, last: int) -> "Problem":
        return replace(self, qkv=self.qkv[first:last].contiguous())

    def expected(self, row: int, position: int, slot: int) -> torch.Tensor:
        """Return one row of the result in float64, head by head; keys before `position` are taken from the cache."""
        kv_heads, size = self.cache.keys.shape[1], self.cache.keys.shape[3]
        parts = self.qkv[row].double().cpu().view(-1, size)
        queries = (parts.shape[0] - 2 * kv_heads) // 2
        result = []
        for head in range(queries):
            group = head // (queries // kv_heads)
            query = self._transform(parts[2 * head], self.heads.q_norm, position)
            key = self._transform(parts[2 * queries + group], self.heads.k_norm, position)
            earlier = (self.cache.keys, self.cache.values)
            keys, values = (c[slot, group, :position].double().cpu() for c in earlier)
            keys = torch.cat((keys, key.to(self.qkv.dtype).double()[None]))
            values = torch.cat((values, parts[2 * queries + kv_heads + group][None]))
            weights = torch.softmax(keys @ query * size**-0.5, 0)
            result.append(weights @ values * torch.sigmoid(parts[2 * head + 1]))
        return torch.cat(result)

    def _transform(self, x: torch.Tensor, weight: torch.Tensor, position: int) -> torch.Tensor:
        x = x / (x.square().mean() + self.heads.eps).sqrt() * (1 + weight.double().cpu())
        half = self.heads.rope.shape[1] // 2
        if half:
            angles = self.heads.rope[position].double().cpu()
            turn = torch.complex(angles[:half], angles[half:])
            turned = torch.complex(x[:half], x[half : 2 * half]) * turn
            x = torch.cat((turned.real, turned.imag, x[2 * half :]))
        return x


@pytest.fixture
def problem(device: torch.device) -> Callable[..., Problem]:
    """Return a function that makes a problem; every cache entry is NaN until filled."""

    def make(
        rows: int,
        *,
        heads: tuple[int, int] = (4, 2),
        size: int = 16,
        rotary: int = 8,
        context: int = 40,
        slots: int = 3,
        dtype: torch.dtype = torch.float32,
        on: torch.device = device,
    ) -> Problem:
        queries, kv_heads = heads
        angles = random_tensor(context, rotary // 2)
        cache = torch.full((slots, kv_heads, context, size), float("nan"), dtype=dtype, device=on)
        return Problem(
            qkv=random_tensor(rows, (2 * queries + 2 * kv_heads) * size, dtype=dtype, device=on),
            heads=HeadTransform(
                q_norm=random_tensor(size, device=on, scale=0.3),
                k_norm=random_tensor(size, device=on, scale=0.3),
                rope=torch.cat((angles.cos(), angles.sin()), 1).to(on),
            ),
            cache=KeyValueCache(keys=cache, values=cache.clone()),
        )

    return make
