"""What an attention call takes beside its projection, and the sizes that its tensors imply."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTransform:
    """What happens to a query or key head first: RMS norm with unit offset, then partial rotary embedding.

    q_norm, k_norm: (D,) float32, bfloat16 or float16. rope: (L, R) float32, the cosines of R/2 angles, then the sines.
    """

    q_norm: torch.Tensor
    k_norm: torch.Tensor
    rope: torch.Tensor
    eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueCache:
    """keys (normed and rotated) and values, each (S, Hkv, L, D), contiguous, of the projection's dtype."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """T rows, Hq query heads, Hkv key-value heads, D, L, S, and R rotated elements of a head."""

    rows: int
    query_heads: int
    kv_heads: int
    head_size: int
    context: int
    slots: int
    rotary: int

    @property
    def width(self) -> int:
        """Return the width Hq·D of an output row."""
        return self.query_heads * self.head_size

    @property
    def constexprs(self) -> dict[str, int]:
        """Return the sizes that every kernel is compiled for."""
        return {"Q": self.query_heads, "G": self.kv_heads, "D": self.head_size}


def sizes_of(qkv: torch.Tensor, heads: HeadTransform, cache: KeyValueCache) -> Sizes:
    """Return the sizes that checked tensors imply."""
    slots, kv_heads, context, head_size = cache.keys.shape
    return Sizes(
        rows=qkv.shape[0],
        query_heads=(qkv.shape[1] - 2 * kv_heads * head_size) // (2 * head_size),
        kv_heads=kv_heads,
        head_size=head_size,
        context=context,
        slots=slots,
        rotary=heads.rope.shape[1],
    )
