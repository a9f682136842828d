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

MARGIN = 90
MIN_WIDTH = 1200
STEP_WIDTH = 30
"""Points an instruction is wide, so that names of tensors that live for a few of them can be read."""
LANE_HEIGHTS: dict[t.BufferKind, int] = {"io": 90, "scratch": 400}
LANE_GAP = 34
FONT = 10
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
    A panel holds the buffers of one device, each in a lane with its own scale of bytes. Its title tells the peak (the
    largest sum of bytes alive in one step), the planned bytes, and the reuse factor: bytes of all tensors over planned
    bytes. A box's tooltip has the whole name, bytes and lifetime.
    """
    boxes = planned_boxes(method)
    width = max(MIN_WIDTH, MARGIN + 20 + STEP_WIDTH * (len(method.instructions) + 1))
    lines: list[str] = []
    y = 50.0
    for device in sorted({buffer.device for buffer in method.buffers}, key=Device.parse):
        own = [i for i, buffer in enumerate(method.buffers) if buffer.device == device]
        title = _title(device, [box for box in boxes if box.buffer in own], sum(method.buffers[i].nbytes for i in own))
        lines.append(_text(MARGIN, y, title, 'font-size="14"'))
        y += 14
        for i in own:
            height = LANE_HEIGHTS[method.buffers[i].kind]
            steps = len(method.instructions) + 1
            scale = _Scale(top=y, height=height, width=width, steps=steps, nbytes=method.buffers[i].nbytes)
            lines += _lane(scale, method.buffers[i].kind, [box for box in boxes if box.buffer == i])
            y += height + LANE_GAP
    heading = f"memory of {method.name}: {len(boxes)} tensors, {len(method.instructions)} instructions"
    size = f'width="{width}" height="{y:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{FONT}">',
            f'<rect {size} fill="white"/>',
            _text(MARGIN, 24, heading, 'font-size="16"'),
            *lines,
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
    """From steps and bytes to points of one lane."""

    top: float
    height: float
    width: float
    steps: int
    nbytes: int

    def x(self, step: float) -> float:
        return MARGIN + step * (self.width - MARGIN - 20) / max(self.steps, 1)

    def y(self, nbytes: float) -> float:
        return self.top + self.height * (1 - nbytes / max(self.nbytes, 1))


def _lane(scale: _Scale, kind: str, boxes: Sequence[Box]) -> Iterator[str]:
    """Yield the lines of one buffer: axes, then a box a tensor."""
    left, right, low, high = scale.x(0), scale.x(scale.steps), scale.y(0), scale.y(scale.nbytes)
    yield f'<path d="M{left:.1f} {high:.1f}V{low:.1f}H{right:.1f}" fill="none" stroke="black"/>'
    yield _text(4, low, kind, 'font-weight="bold"')
    parts = 4 if scale.height > 200 else 1
    for part in range(1, parts + 1):
        nbytes = scale.nbytes * part // parts
        yield _text(left - 4, scale.y(nbytes) + 8, _nbytes(nbytes), 'text-anchor="end"')
    stride = max((scale.steps - 1) // 20, 1)
    for step in range(0, scale.steps, stride):
        yield _text(scale.x(step), low + 12, str(step), 'text-anchor="middle"')
    for number, box in enumerate(boxes):
        yield from _box(scale, box, _PALETTE[number % len(_PALETTE)])


def _title(device: str, boxes: Sequence[Box], planned: int) -> str:
    blocks = [box.block for box in boxes]
    tensors = sum(block.nbytes for block in blocks)
    reuse = tensors / planned if planned else 1.0
    return (
        f"{device}: peak {_nbytes(peak_nbytes(blocks))}, planned {_nbytes(planned)}, "
        f"{len(blocks)} tensors of {_nbytes(tensors)}: reuse {reuse:.1f}x"
    )


def _box(scale: _Scale, box: Box, colour: str) -> Iterator[str]:
    """Yield a tensor's box, with as much of its name as fits."""
    life, nbytes, name = box.block.lifetime, box.block.nbytes, box.block.name
    x, y = scale.x(life.first), scale.y(box.offset + nbytes)
    width = scale.x(life.last + 1) - x
    height = max(scale.y(box.offset) - y, 0.5)
    story = f"{name}: {_nbytes(nbytes)} at {box.offset:,}, instructions {life.first} to {life.last}"
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}" fill-opacity="0.75" '
        f'stroke="white" stroke-width="0.5"><title>{escape(story)}</title></rect>'
    )
    room = int((width - 4) / (0.58 * FONT))
    if height >= FONT and room >= 4:
        label = name if len(name) <= room else name[: room - 1] + "…"
        yield _text(x + 2, y + height / 2 + 0.35 * FONT, label, 'pointer-events="none"')


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'


def _nbytes(count: int) -> str:
    """Write a number of bytes with its unit."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
