"""Sizes, weights and state of a gated delta net, and where its parts lie in the projection and in the state."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetShape:
    """Sizes of one gated delta net.

    The projection of a token holds q (Hk·Dk), k (Hk·Dk), v (Hv·Dv), the norm's gate z (Hv·Dv), b (Hv) and a (Hv).
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def group(self) -> int:
        """Return how many value heads share a key head."""
        return self.value_heads // self.key_heads

    @property
    def channels(self) -> int:
        """Return the width of q, k and v together: the channels of the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def head_channels(self) -> int:
        """Return the channels that one value head reads: its q, its k and its v."""
        return 2 * self.key_dim + self.value_dim

    @property
    def out_width(self) -> int:
        """Return the width of the net's output row."""
        return self.value_heads * self.value_dim

    @property
    def projection_width(self) -> int:
        """Return the width of a projection row."""
        return self.channels + self.out_width + 2 * self.value_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetWeights:
    """Weights of one gated delta net, beside its projections.

    conv_weight: (C, W), oldest tap first. a_log, dt_bias: (Hv,).
    """

    conv_weight: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    key_heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorm:
    """RMS norm of each head of the rule's output, which is then multiplied by silu(z).

    weight: (Dv,), without offset.
    """

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetState:
    """State of one gated delta net over S slots; written in place.

    conv: (S, Hv, W, 2·Dk + Dv) in the projection's dtype: a ring of the convolution's inputs, that of position p in
        entry p % W, as value head h reads them. A step reads the W - 1 entries before its position and writes the one
        left, so no reader waits for a writer. Value heads of one key head hold equal copies of its q and k, so that a
        head is the sole owner of its state and heads can be computed at once without a race.
    recurrent: (S, Hv, Dk, Dv) float32.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor


def shape_of(weights: DeltaNetWeights, state: DeltaNetState) -> DeltaNetShape:
    """Return the sizes that `weights` and `state` imply."""
    _, value_heads, key_dim, value_dim = state.recurrent.shape
    return DeltaNetShape(
        key_heads=weights.key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        conv_width=weights.conv_weight.shape[1],
    )


def past_inputs(ring: torch.Tensor, positions: torch.Tensor, shape: DeltaNetShape) -> torch.Tensor:
    """Return the W - 1 inputs of the convolution before each position, oldest first; those before position 0 are zero.

    ring: (B, Hv, W, 2·Dk + Dv), the conv state of each row. positions: (B,). Returns (B, W-1, C).
    """
    before = positions[:, None] + torch.arange(1 - shape.conv_width, 0, device=positions.device)
    q, k, v = ring.split((shape.key_dim, shape.key_dim, shape.value_dim), -1)
    first = slice(None, None, shape.group)
    inputs = torch.cat([part.transpose(1, 2).flatten(2) for part in (q[:, first], k[:, first], v)], -1)
    rows = torch.arange(len(positions), device=positions.device)[:, None]
    # Selected, not multiplied: what lies in an entry that was never written may be anything.
    return inputs[rows, before % shape.conv_width].masked_fill((before < 0)[..., None], 0.0)


def as_heads_read(inputs: torch.Tensor, shape: DeltaNetShape) -> torch.Tensor:
    """Return inputs of the convolution `(..., C)` as entries `(..., Hv, 2·Dk + Dv)` of the ring."""
    return torch.cat(split_heads(inputs, shape), -1)


def split_heads(inputs: torch.Tensor, shape: DeltaNetShape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split `(..., C)` to q and k `(..., Hv, Dk)`, repeated over value heads of a key head, and v `(..., Hv, Dv)`."""
    keys = shape.key_heads * shape.key_dim
    q, k, v = inputs.split((keys, keys, shape.out_width), -1)
    q = q.unflatten(-1, (shape.key_heads, shape.key_dim)).repeat_interleave(shape.group, -2)
    k = k.unflatten(-1, (shape.key_heads, shape.key_dim)).repeat_interleave(shape.group, -2)
    return q, k, v.unflatten(-1, (shape.value_heads, shape.value_dim))
