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

    steps: steps of the product a round of its loop.
    registers: most registers a thread, where fewer than the compiler would take let another block run beside.
    """

    rows: int
    warps: int
    stages: int
    steps: int = 1
    registers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedConfig:
    """Pairs a tile, and the two grouped products; with int8 activations `gate_up.rows` elements of h share a scale."""

    pair_block: int
    gate_up: ProductConfig
    down: ProductConfig


# Measured on one H200 on 2026-11-30, inside a graph, 256 experts top-8 and a shared one, H 2048, I 512, groups of 128.

ROUTER_ROWS = 64  # up to this many tokens each is routed by the kernel of a few tokens


def router_config(tokens: int, shared_nbytes: int) -> RouterConfig:
    """Return the configuration of the router for `tokens` tokens on a device with `shared_nbytes` a multiprocessor.

    64 tokens take 22.6 µs with the norm and quantization, where blocks take 33.
    """
    if tokens <= ROUTER_ROWS:
        return RouterConfig(rowwise=True, block=2, warps=1)
    # Two stages hold 143 kB, and warps that multiply by themselves need to be more to hold the sums.
    if shared_nbytes > 200_000:
        return RouterConfig(rowwise=False, block=16, warps=4, stages=2)
    return RouterConfig(rowwise=False, block=16, warps=8, stages=1)


def decode_tokens(kind: str) -> int:
    """Return up to how many tokens the decode kernels are the faster ones, with "int8" or "int4" (float) rows.

    int8: 35.3, 62.6 and 91.8 µs for 8, 16 and 24 tokens, where the grouped products take 57, 82 and 102.
    """
    return {"int8": 24, "int4": 4}[kind]


def decode_config(kind: str, tokens: int) -> DecodeConfig:
    """Return the configuration of the decode kernels for `tokens` tokens with "int8" or "int4" (float) rows.

    One H200, 2026-12-01: one int8 row in a graph of all kernels of 40 layers' decode step took 1,004 µs so, 1,010 with
    32 outputs and 8 warps, 1,030 with 32 and 4, and before 1,040 to 1,270 with other blocks; 2, 4, 8, 16 and 24 rows
    by themselves 11.7, 21.0, 35.3, 62.6 and 91.8 µs.
    """
    if kind == "int4":
        return DecodeConfig(gate_up_block=16, gate_up_warps=4, down_block=8, down_warps=8)
    return DecodeConfig(gate_up_block=8 if tokens == 1 else 16, gate_up_warps=2, down_block=16, down_warps=4)


def int8_grouped_config(pairs: int, experts: int, width: int, group: int) -> GroupedConfig:
    """Return the configuration of the grouped products of `pairs` int8 pairs over `experts` experts of `width` rows.

    The elements of h that share a scale lie in one `group` of the down projection's weights. 64, 256, 512, 1,024, 1,341
    and 4,095 tokens take 142, 169, 211, 284, 292 and 708 µs; a block of 16 pairs is the fastest up to 18 pairs an
    expert, and one of 32 up to 36.
    """
    pair_block = 16 if pairs <= 18 * experts else 32 if pairs <= 36 * experts else 64
    gate_up = ProductConfig(rows=128, warps=8, stages=4)
    if width % 128 or group % 128:
        gate_up = ProductConfig(rows=64, warps=4, stages=3)
    return GroupedConfig(pair_block=pair_block, gate_up=gate_up, down=ProductConfig(rows=128, warps=4, stages=3))


def float_grouped_config(pairs: int, experts: int, width: int) -> GroupedConfig:
    """Return the configuration of the grouped products of floating-point pairs, with int4 or dense weights."""
    # The rows of a tile divide the rows of h.
    rows = min(64, width & -width)
    return GroupedConfig(
        pair_block=16 if pairs <= 24 * experts else 64,
        gate_up=ProductConfig(rows=rows, warps=4, stages=3),
        down=ProductConfig(rows=128, warps=4, stages=3),
    )
