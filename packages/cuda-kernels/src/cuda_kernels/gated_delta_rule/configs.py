"""Launch configurations of the family, by shape."""

from dataclasses import dataclass

import triton

from cuda_kernels.gated_delta_rule.layout import DeltaNetShape


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Launch of the decode step: value columns a program, and warps."""

    block_v: int
    num_warps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceConfig:
    """Launch of the chunk recurrence: value columns a program, warps, and stages of the chunks' loads."""

    block_v: int
    num_warps: int
    num_stages: int


def decode_config(shape: DeltaNetShape) -> DecodeConfig:
    """Return the launch of the decode step: several programs a head, so that a few rows fill the device too.

    One H200, 2026-12-01, 32 heads of 128 x 128, one row, a graph of all kernels of 40 layers' decode step: 1,031 µs
    with 32 columns and 4 warps, 1,022 with 2 warps, 1,024 to 1,061 with 16 columns, 1,051 with 64.
    """
    block_v = min(32, max(16, triton.next_power_of_2(shape.value_dim)))
    elements = triton.next_power_of_2(shape.key_dim) * block_v
    return DecodeConfig(block_v=block_v, num_warps=8 if elements > 8192 else 4)


def recurrence_config(value_dim: int, itemsize: int, *, tensor_maps: bool) -> RecurrenceConfig:
    """Return the launch of the chunk recurrence, with its loads through tensor maps on Hopper or by pointers.

    Measured with the system kernel on an H200 at 32 heads of 128 x 128, 2026-11-30, in microseconds at 1,341 and 8,192
    tokens: 61 and 321 with 64 columns and 3 stages; 82 and 436 with 2 stages; 63 and 330 with 32 columns; 95 and 522
    with 128 columns and 8 warps.
    """
    if tensor_maps:
        return RecurrenceConfig(block_v=64, num_warps=4, num_stages=3)
    block_v = min(32, max(16, triton.next_power_of_2(value_dim)))
    return RecurrenceConfig(block_v=block_v, num_warps=8, num_stages=2 if itemsize == 2 else 1)
