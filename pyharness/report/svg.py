"""Pictures as SVG text: heat maps of differing bits, trends over the archive's libraries, intervals
of times.

Everything is drawn 360 units wide, so that labels stay readable on a narrow screen. Colours are
classes of the page's style sheet, for light and dark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyharness.report.markup import esc

WIDTH = 360.0
# shades q0 to q5: how far apart the farthest elements of a cell are; the shade of each class that
# ``differences.findings.Distances`` counts
SHADES = (0, 1, 1, 2, 2, 3, 4, 5, 5)
SHADE_NAMES = ("equal", "1 ulp", "2 to 10 ulp", "11 to 100 ulp", "over 100 ulp", "infinite or NaN")
_TEXT = 11.0


@dataclass(frozen=True)
class Line:
    """One line of a heat map: cells by shade, stretched over the whole width."""

    label: str
    cells: Sequence[int]  # () where nothing differs
    marked: bool = False  # a bar beside the label


def heat_map(
    name: str,
    title: str,
    description: str,
    lines: Sequence[Line],
    ticks: Sequence[tuple[float, str]],
) -> str:
    """``name``: unique in the page. ``ticks``: positions from 0 to 1 under the map."""
    gutter = 14 + 6.4 * max((len(line.label) for line in lines), default=0)
    height = max(3.0, min(15.0, 330.0 / max(1, len(lines))))
    every = -(-int(_TEXT) // int(height))  # labels that do not touch
    width = WIDTH - gutter - 1
    parts = []
    paths: dict[int, list[str]] = {}
    for i, line in enumerate(lines):
        y = 1 + i * height
        box = height - (1 if height >= 6 else 0)
        parts.append(_rect("q0", gutter, y, width, box))
        for begin, end, shade in _runs(line.cells):
            size = width / len(line.cells)
            boxes = paths.setdefault(shade, [])
            if size >= 6:  # wide cells stand apart, narrow ones run into each other
                boxes += [_box(gutter + k * size, y, size - 1, box) for k in range(begin, end)]
            else:
                boxes.append(_box(gutter + begin * size, y, (end - begin) * size, box))
        if line.marked:
            parts.append(_rect("mark", gutter - 5, y, 2, height))
        if i % every == 0:
            parts.append(_text(gutter - 8, y + box / 2 + 4, line.label, "end"))
    drawn = [f'<path class="q{shade}" d="{"".join(d)}"/>' for shade, d in sorted(paths.items())]
    bottom = 1 + len(lines) * height
    for at, label in ticks:
        anchor = "start" if at < 0.1 else "end" if at > 0.9 else "middle"
        parts.append(_text(gutter + at * width, bottom + 13, label, anchor))
    return _svg(name, title, description, bottom + (18 if ticks else 2), [*parts, *drawn])


def _runs(cells: Sequence[int]) -> list[tuple[int, int, int]]:
    """(begin, end, shade) of neighbours in one shade, without those that are equal."""
    runs: list[tuple[int, int, int]] = []
    for k, shade in enumerate(cells):
        if shade and runs and runs[-1][1:] == (k, shade):
            runs[-1] = runs[-1][0], k + 1, shade
        elif shade:
            runs.append((k, k + 1, shade))
    return runs


def trend(
    name: str, title: str, description: str, points: Sequence[tuple[str, float, str]], last: bool
) -> str:
    """Bars from zero, oldest first: (label, value, value as text). ``last``: the last one is this
    run's candidate, not in the archive yet.
    """
    gutter = 14 + 6.4 * max((len(label) for label, _, _ in points), default=0)
    told = 8 + 6.4 * max((len(text) for _, _, text in points), default=0)
    width = WIDTH - gutter - told
    top = max((value for _, value, _ in points), default=0) or 1
    parts = []
    for i, (label, value, text) in enumerate(points):
        y = 2 + 20 * i
        bar = max(1.0, width * value / top)
        kind = "bar new" if last and i == len(points) - 1 else "bar"
        parts += [
            _text(gutter - 8, y + 11, label, "end"),
            _rect(kind, gutter, y, bar, 14),
            _text(gutter + bar + 6, y + 11, text, "start"),
        ]
    return _svg(name, title, description, 4 + 20 * len(points), parts)


@dataclass(frozen=True)
class Row:
    """One row of a picture of intervals; all numbers on one scale."""

    label: str
    values: Sequence[float]
    low: float
    middle: float
    high: float


def intervals(
    name: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    band: float,
    told: Callable[[float], str],
) -> str:
    """Values as dots, their interval as a bar with its middle; 0 in the centre, and a band to both
    sides of it. ``told``: what a number is called under the picture.
    """
    gutter = 14 + 6.4 * max(len(row.label) for row in rows)
    reach = 1.05 * max(band, *(abs(v) for r in rows for v in (*r.values, r.low, r.high)))
    width, height = WIDTH - gutter - 6, 40.0

    def x(value: float) -> float:
        return gutter + width * (value + reach) / (2 * reach)

    bottom = height * len(rows)
    parts = [
        _rect("band", x(-band), 0, x(band) - x(-band), bottom),
        _rect("axis", x(0), 0, 1, bottom),
    ]
    for i, row in enumerate(rows):
        y = height * i + height / 2
        parts.append(_text(gutter - 8, y + 4, row.label, "end"))
        parts += [_dot(x(v), y - 8 + 4 * (k % 5)) for k, v in enumerate(row.values)]
        parts.append(_rect("bar", x(row.low), y + 12, max(1.0, x(row.high) - x(row.low)), 4))
        parts.append(_rect("bar new", x(row.middle) - 1, y + 10, 2, 8))
    for value, anchor in ((-reach, "start"), (0.0, "middle"), (reach, "end")):
        parts.append(_text(x(value), bottom + 13, told(value) if value else "0", anchor))
    return _svg(name, title, description, bottom + 18, parts)


def _svg(name: str, title: str, description: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_n(WIDTH)} {_n(height)}" role="img" '
        f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{esc(title)}</title>'
        f'<desc id="{name}-d">{esc(description)}</desc>{"".join(parts)}</svg>'
    )


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect class="{kind}" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"/>'
    )


def _dot(x: float, y: float) -> str:
    return f'<circle class="dot" cx="{_n(x)}" cy="{_n(y)}" r="2.2"/>'


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h-{_n(width)}z"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{esc(text)}</text>'


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
