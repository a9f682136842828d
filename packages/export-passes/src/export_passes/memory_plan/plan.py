"""What planners take and return: blocks of bytes with lifetimes, and their offsets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from export_passes.lifetimes import Lifetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes that one tensor needs while it is alive."""

    name: str
    nbytes: int
    lifetime: Lifetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One buffer of `nbytes`, and where each block (by its index) begins in it."""

    nbytes: int
    offsets: tuple[int, ...]


def aligned(nbytes: int, alignment: int) -> int:
    """Round up to a multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment


def peak_nbytes(blocks: Sequence[Block], alignment: int = 1) -> int:
    """Return the largest sum of bytes alive in one step: no plan can need less."""
    change: dict[int, int] = {}
    for block in blocks:
        size = aligned(block.nbytes, alignment)
        change[block.lifetime.first] = change.get(block.lifetime.first, 0) + size
        change[block.lifetime.last + 1] = change.get(block.lifetime.last + 1, 0) - size
    alive = peak = 0
    for step in sorted(change):
        alive += change[step]
        peak = max(peak, alive)
    return peak


def plan_of(blocks: Sequence[Block], offsets: Mapping[int, int]) -> Plan:
    """Make a plan of all blocks from the offset of each."""
    end = max((offsets[i] + block.nbytes for i, block in enumerate(blocks)), default=0)
    return Plan(nbytes=end, offsets=tuple(offsets[i] for i in range(len(blocks))))
