"""Tile sizes of the attention kernels."""

import functools
from dataclasses import dataclass

import torch
import triton

from cuda_kernels.attention.layout import Sizes

# Programs of one row of the batch. One H200, 2026-11-30, 16 query and 2 key-value heads of 256, caches past the L2:
# 1,341 keys 7.3 µs with 64 programs and 7.8 with 128 (9.8 and 10.1 before rotation and norm weights were read ahead);
# 32,000 keys 26.0 µs with 128, 27.0 with 256. On 2026-12-01, a graph of all kernels of 40 layers' decode step: 64 keys
# and 8 warps took 10 to 20 µs less of 980 than 32 and 4 at 1,341 keys, and the same at 32,000; two stages 15 more.
PROGRAMS, PROGRAMS_LONG, LONG_CONTEXT = 64, 128, 8192
SHARED_H200 = 232_448


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
    block_keys = 64
    programs = PROGRAMS if sizes.context <= LONG_CONTEXT else PROGRAMS_LONG
    wanted = triton.next_power_of_2(max(1, programs // (sizes.rows * sizes.kv_heads)))
    useful = triton.next_power_of_2(triton.cdiv(sizes.context, block_keys))
    return DecodeConfig(
        splits=min(wanted, useful),
        block_keys=block_keys,
        block_heads=max(8, triton.next_power_of_2(sizes.query_heads // sizes.kv_heads)),
        warps=8,
        stages=1,
        columns=min(64, sizes.head_size),
        combine_warps=4,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """Rows (token, query head) and keys a tile, keys of a tile at the causal edge, warps, stages; column blocks of the
    gate; tokens a program of the preparing kernel.
    """

    block_rows: int
    block_keys: int
    edge_keys: int
    warps: int
    stages: int
    gate_parts: int
    prepare_tokens: int


# Rows, keys, warps and stages, the fastest first; one is used where its tiles fit. One H200, 2026-11-30, both kernels:
# (128, 64, 8, 2) 66 µs at 1,341 tokens and 1,106 at 8,192; (128, 32, 8, 3) 75 and 1,307; (64, 64, 4, 2) 85 at 1,341.
PREFILL_TILES = ((128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 2))


def prefill_config(sizes: Sizes, itemsize: int, shared_nbytes: int) -> PrefillConfig:
    """Choose by the number of rows, the size of a key, and the shared memory that a program may have."""
    rows = sizes.rows * (sizes.query_heads // sizes.kv_heads)
    if itemsize == 4:
        # No tensor cores: float32 products are exact, and their operands go through registers.
        tiles = (16, 32 if sizes.head_size <= 64 else 16, 4, 1)
    else:
        tiles = next(t for t in PREFILL_TILES if _tiles_nbytes(t, sizes, itemsize) <= shared_nbytes and _suits(t, rows))
    block_rows, block_keys, warps, stages = tiles
    return PrefillConfig(
        block_rows=block_rows,
        block_keys=block_keys,
        edge_keys=min(32, block_keys),
        warps=warps,
        stages=stages,
        gate_parts=max(1, sizes.head_size // 64),
        prepare_tokens=8,
    )


def _suits(tiles: tuple[int, int, int, int], rows: int) -> bool:
    return tiles[0] <= 64 or rows > 64


def _tiles_nbytes(tiles: tuple[int, int, int, int], sizes: Sizes, itemsize: int) -> int:
    block_rows, block_keys, _, stages = tiles
    # Keys and values a stage; barriers and reductions take a little more.
    return (block_rows + 2 * stages * block_keys) * sizes.head_size * itemsize + 2048


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Return how many bytes of shared memory one program may have."""
    if device.type != "cuda":
        return SHARED_H200
    index = device.index if device.index is not None else torch.cuda.current_device()
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])
