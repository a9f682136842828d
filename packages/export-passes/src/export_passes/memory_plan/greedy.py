"""The greedy planner: block after block goes to the tightest gap that is free for all of its life.

The largest block first, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020);
the same with other orders, and the smallest plan wins.
"""

from collections.abc import Callable, Sequence

from export_passes.memory_plan.plan import Block, Plan, aligned, peak_nbytes, plan_of


def greedy(blocks: Sequence[Block], *, alignment: int) -> Plan:
    """Place blocks so that two that are alive together share no bytes; offsets are multiples of `alignment`."""
    floor = peak_nbytes(blocks, alignment)
    best: Plan | None = None
    for order in _ORDERS:
        plan = _placed(blocks, sorted(range(len(blocks)), key=lambda i: order(blocks[i])), alignment)
        if best is None or plan.nbytes < best.nbytes:
            best = plan
        if best.nbytes <= floor:
            break
    assert best is not None
    return best


def _duration(block: Block) -> int:
    return block.lifetime.last - block.lifetime.first + 1


_ORDERS: tuple[Callable[[Block], tuple[int, ...]], ...] = (
    lambda b: (-b.nbytes, b.lifetime.first),
    lambda b: (-b.nbytes * _duration(b), b.lifetime.first),
    lambda b: (-_duration(b), -b.nbytes, b.lifetime.first),
)


def _placed(blocks: Sequence[Block], order: Sequence[int], alignment: int) -> Plan:
    offsets: dict[int, int] = {}
    # Blocks placed so far by the steps in which they live: only those that overlap in time are looked at.
    alive: dict[int, list[int]] = {}
    for i in order:
        steps = range(blocks[i].lifetime.first, blocks[i].lifetime.last + 1)
        neighbours = {j for step in steps for j in alive.get(step, ())}
        taken = sorted((offsets[j], offsets[j] + blocks[j].nbytes) for j in neighbours)
        offsets[i] = _tightest_gap(taken, blocks[i].nbytes, alignment)
        if blocks[i].nbytes:
            for step in steps:
                alive.setdefault(step, []).append(i)
    return plan_of(blocks, offsets)


def _tightest_gap(taken: Sequence[tuple[int, int]], nbytes: int, alignment: int) -> int:
    """Return the start of the smallest gap between intervals that holds `nbytes`, or the end of the last interval."""
    best, best_room, end = -1, 0, 0
    for start, stop in taken:
        room = start - end
        if nbytes <= room and (best < 0 or room < best_room):
            best, best_room = end, room
        end = max(end, aligned(stop, alignment))
    return end if best < 0 else best
