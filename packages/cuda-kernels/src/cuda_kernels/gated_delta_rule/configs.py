"""Launch configurations of the family, by shape."""

from dataclasses import dataclass

import triton

from cuda_kernels.gated_delta_rule.layout import DeltaNetShape


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Launch of the decode step: value columns a program, and warps."""

    block_v: int
    num_warps: int

    def split(self, value_dim: int) -> int:
        """Return the programs of a head."""
        return triton.cdiv(value_dim, self.block_v)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceConfig:
    """Launch of the chunk recurrence: value columns a program, warps, and stages of the chunks' loads."""

    block_v: int
    num_warps: int
    num_stages: int


def decode_config(shape: DeltaNetShape, rows: int) -> DecodeConfig:
    """Return the launch of the decode step; many rows fill the device with fewer programs a head."""
    whole = max(16, triton.next_power_of_2(shape.value_dim))
    block_v = min(32, whole) if rows * shape.value_heads <= 512 else whole
    elements = triton.next_power_of_2(shape.key_dim) * block_v
    return DecodeConfig(block_v=block_v, num_warps=8 if elements > 8192 else 4)


def recurrence_config(value_dim: int, *, hopper: bool) -> RecurrenceConfig:
    """Return the launch of the chunk recurrence; only Hopper's products take a state of 64 columns in registers."""
    block_v = min(64 if hopper else 32, max(16, triton.next_power_of_2(value_dim)))
    return RecurrenceConfig(block_v=block_v, num_warps=4, num_stages=2)
