"""Launch configurations of the family, by shape."""

from dataclasses import dataclass

import triton

from cuda_kernels.gated_delta_rule.layout import DeltaNetShape


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceConfig:
    """Launch of the chunk recurrence: value columns a program, warps, and stages of the chunks' loads."""

    block_v: int
    num_warps: int
    num_stages: int


def decode_warps(shape: DeltaNetShape) -> int:
    """Return the warps that share a head's state in the decode step: about 32 elements a thread."""
    elements = shape.key_dim * shape.value_dim
    return 16 if elements >= 16384 else 8 if elements >= 4096 else 4


def recurrence_config(value_dim: int, *, hopper: bool) -> RecurrenceConfig:
    """Return the launch of the chunk recurrence; only Hopper's products take a state of 64 columns in registers."""
    block_v = min(64 if hopper else 32, max(16, triton.next_power_of_2(value_dim)))
    return RecurrenceConfig(block_v=block_v, num_warps=4, num_stages=2)
