"""Pictures of memory plans: one panel a device, time from left to right, bytes from bottom to top."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from device_core.device import Device
from device_core.schema import types as t
from device_core.schema.dims import Interval, upper_bound
from device_core.schema.dtypes import itemsize
from device_core.schema.validate_instructions import read_by

from export_passes.lifetimes import Lifetime, lifetimes
from export_passes.memory_plan.plan import Block, peak_nbytes

WIDTH = 1600
PANEL_HEIGHT = 420
MARGIN = 90
FONT = 11
_FILLING = ("aten::copy_", "aten::fill_")
_PALETTE = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#e15759", "#9c755f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One planned tensor: its bytes in a buffer and the instructions from its first to its last use."""

    block: Block
    offset: int
    buffer: int


def render_svg(method: t.Method) -> str:
    """Draw the planned memory of a method as an SVG document.

    Everything is worked out from the method alone: lifetimes from its instructions, sizes at their upper bounds.
    Buffers of one device are stacked in one panel, whose title tells the peak (the largest sum of bytes alive in one
    step), the planned bytes and the reuse factor: bytes of all tensors over planned bytes.
    """
    boxes = planned_boxes(method)
    devices = sorted({buffer.device for buffer in method.buffers}, key=Device.parse)
    panels = [_panel(method, device, boxes, top=40 + i * (PANEL_HEIGHT + 70)) for i, device in enumerate(devices)]
    height = 50 + len(devices) * (PANEL_HEIGHT + 70)
    title = f"memory of {method.name}: {len(boxes)} tensors, {len(method.instructions)} instructions"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="{FONT}">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="{MARGIN}" y="24" font-size="16">{escape(title)}</text>',
            *(line for panel in panels for line in panel),
            "</svg>",
        ]
    )


def planned_boxes(method: t.Method) -> list[Box]:
    """Return the tensors that own planned memory, in the order of their first use.

    A value belongs to a tensor that is there already where it shares bytes with it while that is alive, or where it is
    read before anything wrote it by its own name: it is a view then.
    """
    ranges = {symbol.name: Interval(symbol.min, symbol.max) for symbol in method.symbols}
    steps = [read_by(method, instruction) for instruction in method.instructions]
    lives = lifetimes(steps, from_start=method.inputs, to_end=[*method.inputs, *method.outputs])
    boxes: list[list[Box]] = [[] for _ in method.buffers]
    for index in sorted(lives, key=lambda i: lives[i].first):
        value, life = method.values[index], lives[index]
        if isinstance(value, t.TensorValue) and isinstance(value.storage, t.Planned):
            block = Block(name=value.name, nbytes=_span(value, ranges), lifetime=life)
            offset = upper_bound(value.storage.offset_bytes, ranges)
            box = Box(block=block, offset=offset, buffer=value.storage.buffer)
            written = life.first == len(steps) or index in _made_by(method, method.instructions[life.first])
            _merge(boxes[box.buffer], box, is_view=not written and index not in method.inputs)
    return [box for group in boxes for box in group]


def _merge(boxes: list[Box], new: Box, *, is_view: bool) -> None:
    """Add a box, or widen the latest one that it is part of."""
    for i, box in reversed(list(enumerate(boxes))):
        shared = box.offset < new.offset + new.block.nbytes and new.offset < box.offset + box.block.nbytes
        if shared and (is_view or box.block.lifetime.overlaps(new.block.lifetime)):
            boxes[i] = _union(box, new)
            return
    boxes.append(new)


def _union(box: Box, new: Box) -> Box:
    start = min(box.offset, new.offset)
    end = max(box.offset + box.block.nbytes, new.offset + new.block.nbytes)
    one, other = box.block.lifetime, new.block.lifetime
    life = Lifetime(min(one.first, other.first), max(one.last, other.last))
    return Box(block=Block(name=box.block.name, nbytes=end - start, lifetime=life), offset=start, buffer=box.buffer)


def _made_by(method: t.Method, instruction: t.Instruction) -> Sequence[int]:
    """Return what an instruction fills without looking at it; an operator that works in place updates what is there."""
    match instruction:
        case t.KernelCall(operator=operator, args=args, outputs=outputs):
            fills = method.operators[operator].startswith(_FILLING)
            return [i for i in outputs if fills or i not in args]
        case t.DelegateCall(outputs=outputs):
            return outputs
        case t.Move(target=target):
            return (target,)
    return ()


def _span(value: t.TensorValue, ranges: Mapping[str, Interval]) -> int:
    """Return the bytes from the first to the end of the last element, at the largest sizes."""
    sizes = [upper_bound(size, ranges) for size in value.sizes]
    last = sum((n - 1) * upper_bound(s, ranges) for n, s in zip(sizes, value.strides, strict=True))
    return 0 if 0 in sizes else (last + 1) * itemsize(value.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """From steps and bytes to points of one panel."""

    top: float
    steps: int
    nbytes: int

    def x(self, step: float) -> float:
        return MARGIN + step * (WIDTH - MARGIN - 20) / max(self.steps, 1)

    def y(self, nbytes: float) -> float:
        return self.top + PANEL_HEIGHT * (1 - nbytes / max(self.nbytes, 1))


def _panel(method: t.Method, device: str, boxes: Sequence[Box], *, top: float) -> Iterator[str]:
    """Yield the lines of one device: its buffers stacked on each other, with axes."""
    buffers = [i for i, buffer in enumerate(method.buffers) if buffer.device == device]
    starts: dict[int, int] = {}
    total = 0
    for i in buffers:
        starts[i] = total
        total += method.buffers[i].nbytes
    own = [box for box in boxes if box.buffer in starts]
    scale = _Scale(top=top + 20, steps=len(method.instructions) + 1, nbytes=total)
    yield f'<text x="{MARGIN}" y="{top + 10}" font-size="14">{escape(_title(device, own, total))}</text>'
    yield from _axes(scale)
    for i in buffers:
        y, kind = scale.y(starts[i]), method.buffers[i].kind
        yield f'<line x1="{MARGIN}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#888" stroke-dasharray="4 3"/>'
        yield f'<text x="4" y="{y - 3:.1f}">{kind}</text>'
    for number, box in enumerate(own):
        yield from _box(scale, box, starts[box.buffer], _PALETTE[number % len(_PALETTE)])


def _title(device: str, boxes: Sequence[Box], planned: int) -> str:
    blocks = [box.block for box in boxes]
    tensors = sum(block.nbytes for block in blocks)
    reuse = tensors / planned if planned else 1.0
    return (
        f"{device}: peak {_nbytes(peak_nbytes(blocks))}, planned {_nbytes(planned)}, "
        f"{len(blocks)} tensors of {_nbytes(tensors)}: reuse {reuse:.1f}x"
    )


def _axes(scale: _Scale) -> Iterator[str]:
    left, right, low, high = scale.x(0), scale.x(scale.steps), scale.y(0), scale.y(scale.nbytes)
    yield f'<path d="M{left:.1f} {high:.1f}V{low:.1f}H{right:.1f}" fill="none" stroke="black"/>'
    for quarter in range(5):
        nbytes = scale.nbytes * quarter // 4
        yield f'<text x="{left - 4:.1f}" y="{scale.y(nbytes) + 4:.1f}" text-anchor="end">{_nbytes(nbytes)}</text>'
    for tenth in range(11):
        step = (scale.steps - 1) * tenth // 10
        yield f'<text x="{scale.x(step):.1f}" y="{low + 14:.1f}" text-anchor="middle">{step}</text>'


def _box(scale: _Scale, box: Box, start: int, colour: str) -> Iterator[str]:
    """Yield a tensor's box, with its name where that fits; the whole story is in its tooltip."""
    life, nbytes = box.block.lifetime, box.block.nbytes
    x, y = scale.x(life.first), scale.y(start + box.offset + nbytes)
    width = max(scale.x(life.last + 1) - x, 1.0)
    height = max(scale.y(start + box.offset) - y, 0.5)
    name = escape(box.block.name)
    story = f"{name}: {_nbytes(nbytes)} at {box.offset:,}, instructions {life.first} to {life.last}"
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}" fill-opacity="0.75" '
        f'stroke="white" stroke-width="0.3"><title>{story}</title></rect>'
    )
    if height >= FONT and width >= 0.6 * FONT * len(box.block.name) + 4:
        yield f'<text x="{x + 2:.1f}" y="{y + height / 2 + 4:.1f}" pointer-events="none">{name}</text>'


def _nbytes(count: int) -> str:
    """Write a number of bytes with its unit."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
