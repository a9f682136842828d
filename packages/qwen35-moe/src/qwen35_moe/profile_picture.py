"""A picture of where a decode step goes: a bar an operator, its floor marked in it."""

from collections.abc import Sequence
from html import escape

from qwen35_moe.profiling import OperatorShare

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 900, 26, 200, 210, 44


def render_svg(shares: Sequence[OperatorShare], title: str) -> str:
    """Return an SVG document: bars to scale, with microseconds, share, and how many times the floor that is."""
    longest = max(share.seconds for share in shares)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    height = _TOP + _ROW * len(shares) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
    ]
    for index, share in enumerate(shares):
        top = _TOP + index * _ROW
        width, floor = share.seconds * scale, min(share.floor_s, share.seconds) * scale
        lines += [
            f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(share.operator)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_ROW - 6}" fill="#f28e2b"/>',
            f'<rect x="{_LEFT}" y="{top}" width="{floor:.1f}" height="{_ROW - 6}" fill="#4e79a7"/>',
            f'<text x="{_LEFT + width + 8:.1f}" y="{top + 15}">{escape(describe(share))}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def describe(share: OperatorShare) -> str:
    """Return the figures of one operator in a line."""
    times = f", {share.seconds / share.floor_s:.1f} times its floor" if share.floor_s else ""
    return f"{share.seconds * 1e6:.1f} µs, {100 * share.share:.1f} %{times}"
