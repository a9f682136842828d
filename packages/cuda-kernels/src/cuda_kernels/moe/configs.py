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
    """Rows of a tile (of h for gate and up, of the output for down), warps and pipeline stages of a grouped product.

    registers: most registers a thread, where fewer than the compiler would take let another block run beside.
    """

    rows: int
    warps: int
    stages: int
    registers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedConfig:
    """Pairs a tile, and the two grouped products; with int8 activations `gate_up.rows` elements of h share a scale."""

    pair_block: int
    gate_up: ProductConfig
    down: ProductConfig


ROUTER_ROWS = 32  # up to this many tokens each is routed by the kernel of a few tokens


def router_config(tokens: int) -> RouterConfig:
    """Return the configuration of the router for `tokens` tokens."""
    if tokens <= ROUTER_ROWS:
        return RouterConfig(rowwise=True, block=2, warps=4)
    return RouterConfig(rowwise=False, block=32, warps=8)


def decode_tokens(kind: str) -> int:
    """Return up to how many tokens the decode kernels are the faster ones, with "int8" or "int4" (float) rows."""
    return {"int8": 16, "int4": 4}[kind]


def decode_config(tokens: int) -> DecodeConfig:
    """Return the configuration of the decode kernels for `tokens` tokens."""
    return DecodeConfig()


def grouped_config(kind: str, pairs: int, experts: int, width: int) -> GroupedConfig:
    """Return the configuration of the grouped products of `pairs` pairs over `experts` experts of `width` rows of h.

    kind: "int8", "int4" or "dense".
    """
    pair_block = 64 if pairs > 24 * experts else 32 if pairs > 8 * experts else 16
    # The rows of a tile divide the rows of h.
    rows = min(64, width & -width)
    return GroupedConfig(
        pair_block=pair_block,
        gate_up=ProductConfig(rows=rows, warps=4, stages=3),
        down=ProductConfig(rows=128, warps=4, stages=3),
    )
