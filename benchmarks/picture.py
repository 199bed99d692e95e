"""Charts as SVG: bars on a logarithmic scale, and curves. Pure functions from values to text.

Colours follow the reader's colour scheme, light or dark; nothing is fetched and no font is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
_LABEL = 200
_BAR = 16
_GAP = 6
_HEAD = 58
_STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 14px }
.note { fill: #57606a; font-size: 11px } .ours { fill: #1a7f37 } .peer { fill: #8c959f } .bare { fill: #54aeff }
.grid { stroke: #d0d7de; stroke-width: 1 } .line { stroke: #1a7f37; stroke-width: 2; fill: none } .dot { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .note { fill: #9198a1 } .ours { fill: #3fb950 } .peer { fill: #6e7681 } .bare { fill: #1f6feb }
.grid { stroke: #3d444d } .line { stroke: #3fb950 } .dot { fill: #3fb950 } }
</style>"""


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    kind: str
    """ours, peer or bare."""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    unit: str
    bars: tuple[Bar, ...]
    is_more_better: bool = False


def ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten in a range, its ends included."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw_bars(chart: Chart, top: float) -> tuple[str, float]:
    """Return one chart, with its upper edge at `top`, and the position of the next one."""
    values = [bar.value for bar in chart.bars]
    marks = ticks(min(values), max(values))
    low, span = math.log10(marks[0]), max(math.log10(marks[-1]) - math.log10(marks[0]), 1)
    room = WIDTH - _LABEL - 80

    def x(value: float) -> float:
        return _LABEL + (math.log10(value) - low) / span * room

    better = "longer is better" if chart.is_more_better else "shorter is better"
    parts = [
        f'<text class="title" x="0" y="{top + 14:.0f}">{escape(chart.title)}</text>',
        f'<text class="note" x="0" y="{top + 30:.0f}">{escape(chart.unit)}, logarithmic; {better}</text>',
    ]
    height = len(chart.bars) * (_BAR + _GAP)
    parts += [
        f'<line class="grid" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{top + _HEAD - 6:.0f}" '
        f'y2="{top + _HEAD + height:.0f}"/>'
        for mark in marks
    ]
    parts += [
        f'<text class="note" x="{x(mark):.1f}" y="{top + _HEAD - 9:.0f}" text-anchor="middle">{mark:,.10g}</text>'
        for mark in marks
    ]
    for row, bar in enumerate(chart.bars):
        y = top + _HEAD + row * (_BAR + _GAP)
        wide = max(x(bar.value) - _LABEL, 2)
        parts.append(f'<text x="{_LABEL - 8}" y="{y + 12:.0f}" text-anchor="end">{escape(bar.name)}</text>')
        parts.append(f'<rect class="{bar.kind}" x="{_LABEL}" y="{y:.0f}" width="{wide:.1f}" height="{_BAR}" rx="2"/>')
        parts.append(f'<text x="{_LABEL + wide + 6:.1f}" y="{y + 12:.0f}">{number(bar.value)}</text>')
    return "\n".join(parts), top + _HEAD + height + 24


def draw_curve(title: str, x: str, y: str, points: Sequence[tuple[float, float]], left: float, top: float) -> str:
    """Draw one curve in its own frame, with linear axes that start at 0."""
    wide, high = WIDTH / 2 - 90, 130.0
    most_x = max(point[0] for point in points) or 1
    most_y = max(point[1] for point in points) * 1.15 or 1
    at = [(left + 46 + px / most_x * wide, top + 26 + high - py / most_y * high) for px, py in points]
    bottom = top + 26 + high
    parts = [
        f'<text class="title" x="{left:.0f}" y="{top + 14:.0f}">{escape(title)}</text>',
        f'<line class="grid" x1="{left + 46:.0f}" x2="{left + 46 + wide:.0f}" y1="{bottom:.0f}" y2="{bottom:.0f}"/>',
        f'<line class="grid" x1="{left + 46:.0f}" x2="{left + 46:.0f}" y1="{top + 26:.0f}" y2="{bottom:.0f}"/>',
        f'<polyline class="line" points="{" ".join(f"{px:.1f},{py:.1f}" for px, py in at)}"/>',
    ]
    for px, py in at:
        parts.append(f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="3"/>')
    for (px, py), (_, value) in ((at[0], points[0]), (at[-1], points[-1])):
        parts.append(f'<text class="note" x="{px:.1f}" y="{py - 7:.1f}" text-anchor="middle">{number(value)}</text>')
    parts.append(
        f'<text class="note" x="{left + 46 + wide:.0f}" y="{bottom + 15:.0f}" text-anchor="end">{number(most_x)}</text>'
    )
    parts.append(f'<text class="note" x="{left + 46:.0f}" y="{bottom + 15:.0f}">{escape(x)} → ; {escape(y)} ↑</text>')
    return "\n".join(parts)


def draw(
    charts: Sequence[Chart], curves: Sequence[tuple[str, str, str, Sequence[tuple[float, float]]]], note: str
) -> str:
    """Return the whole picture: charts one below the other, then the curves in rows of two."""
    parts, top = [], 10.0
    for chart in charts:
        text, top = draw_bars(chart, top)
        parts.append(text)
    for row, curve in enumerate(curves):
        parts.append(draw_curve(*curve, left=(row % 2) * WIDTH / 2, top=top))
        if row % 2 or row == len(curves) - 1:
            top += 190
    parts.append(f'<text class="note" x="0" y="{top + 12:.0f}">{escape(note)}</text>')
    height = top + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="benchmark">\n{_STYLE}\n' + "\n".join(parts) + "\n</svg>\n"
    )
