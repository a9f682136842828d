"""The naive planner: every block has bytes of its own, one after the other. The reference for the others."""

from collections.abc import Sequence

from export_passes.memory_plan.plan import Block, Plan, aligned, plan_of


def naive(blocks: Sequence[Block], *, alignment: int) -> Plan:
    """Place blocks in their order, without any reuse."""
    offsets, end = {}, 0
    for i, block in enumerate(blocks):
        offsets[i] = aligned(end, alignment)
        end = offsets[i] + block.nbytes
    return plan_of(blocks, offsets)
