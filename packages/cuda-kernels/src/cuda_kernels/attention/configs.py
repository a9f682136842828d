"""Tile sizes of the attention kernels."""

from dataclasses import dataclass

import triton

from cuda_kernels.attention.sizes import Sizes

# Programs that fill a device of about 132 multiprocessors once.
PROGRAMS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """splits of the keys, keys and query heads a tile, warps, stages; columns a program of the combining kernel."""

    splits: int
    block_keys: int
    block_heads: int
    warps: int
    stages: int
    columns: int
    combine_warps: int


def decode_config(sizes: Sizes) -> DecodeConfig:
    """Choose by capacity and rows alone, both known when a graph is captured."""
    block_keys = 32
    wanted = triton.next_power_of_2(max(1, PROGRAMS // (sizes.rows * sizes.kv_heads)))
    useful = triton.next_power_of_2(triton.cdiv(sizes.context, block_keys))
    return DecodeConfig(
        splits=min(wanted, useful),
        block_keys=block_keys,
        block_heads=max(8, triton.next_power_of_2(sizes.query_heads // sizes.kv_heads)),
        warps=4,
        stages=3,
        columns=min(64, sizes.head_size),
        combine_warps=4,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """Rows (token, query head) and keys a tile, keys of the tiles at the causal edge, warps and stages; column blocks of
    the gate; tokens a program of the preparing kernel.
    """

    block_rows: int
    block_keys: int
    edge_keys: int
    warps: int
    stages: int
    gate_parts: int
    prepare_tokens: int


def prefill_config(sizes: Sizes, itemsize: int) -> PrefillConfig:
    """Choose by the number of rows and the size of a key."""
    rows = sizes.rows * (sizes.query_heads // sizes.kv_heads)
    parts, prepare_tokens = max(1, sizes.head_size // 64), 8
    if itemsize == 4:
        block_rows, block_keys, warps, stages = 16, 32 if sizes.head_size <= 64 else 16, 4, 1
    elif rows <= 64:
        block_rows, block_keys, warps, stages = 64, 64, 4, 2
    else:
        block_rows, block_keys, warps, stages = 128, 64, 8, 2 if sizes.head_size == 256 else 3
    return PrefillConfig(
        block_rows=block_rows,
        block_keys=block_keys,
        edge_keys=min(32, block_keys),
        warps=warps,
        stages=stages,
        gate_parts=parts,
        prepare_tokens=prepare_tokens,
    )
