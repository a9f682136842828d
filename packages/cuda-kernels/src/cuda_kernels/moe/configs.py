"""Tile choices of the mixture-of-experts kernels, measured on one H200."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Rows a program and warps of the two decode kernels; blocks divide the group size."""

    gate_up_block: int = 8
    gate_up_warps: int = 4
    down_block: int = 4
    down_warps: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Which router kernel, its block (logits a program rowwise, tokens a program otherwise), warps and stages."""

    rowwise: bool
    block: int
    warps: int
    stages: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductConfig:
    """Rows of a tile (of h for gate and up, of the output for down), warps and pipeline stages of a grouped product."""

    rows: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedConfig:
    """Pairs a tile, and the two grouped products; with int8 activations `gate_up.rows` elements of h share a scale."""

    pair_block: int
    gate_up: ProductConfig
    down: ProductConfig
