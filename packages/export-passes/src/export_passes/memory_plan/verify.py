"""Verification of a plan: no bytes are shared by two blocks that are alive together, nothing lies outside."""

from collections.abc import Sequence

from export_passes.errors import PlanError
from export_passes.memory_plan.plan import Block, Plan


def verify(blocks: Sequence[Block], plan: Plan, *, alignment: int) -> None:
    """Raise PlanError where `plan` does not hold for `blocks`; names the blocks."""
    if len(plan.offsets) != len(blocks):
        raise PlanError(f"a plan of {len(plan.offsets)} blocks for {len(blocks)}")
    for block, offset in zip(blocks, plan.offsets, strict=True):
        if offset < 0 or offset % alignment or offset + block.nbytes > plan.nbytes:
            raise PlanError(
                f"{block.name}: bytes {offset} to {offset + block.nbytes}: expected a multiple of {alignment} within "
                f"the buffer's {plan.nbytes}"
            )
    alive: list[int] = []
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].lifetime.first):
        alive = [j for j in alive if blocks[j].lifetime.last >= blocks[i].lifetime.first]
        for j in alive:
            _check_apart(blocks, plan, i, j)
        alive.append(i)


def _check_apart(blocks: Sequence[Block], plan: Plan, i: int, j: int) -> None:
    ends = [plan.offsets[k] + blocks[k].nbytes for k in (i, j)]
    if blocks[i].nbytes and blocks[j].nbytes and plan.offsets[i] < ends[1] and plan.offsets[j] < ends[0]:
        raise PlanError(
            f"{blocks[i].name} (bytes {plan.offsets[i]} to {ends[0]}) and {blocks[j].name} (bytes {plan.offsets[j]} to "
            f"{ends[1]}) are alive together, in steps {blocks[i].lifetime} and {blocks[j].lifetime}"
        )
