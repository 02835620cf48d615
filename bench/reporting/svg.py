"""Three kinds of plots as SVG text: bars, ranges of percentiles, and lines. Colours are classes, so that a page or the
file's own style decides them, in light and in dark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from bench.reporting.axis import Axis, compact

WIDTH = 760
"""In the SVG's own units; a page scales it."""

_ROW = 26
_LABELS = 250
_VALUES = 130
_TICKS = 26

STYLE = """
:root { --surface: #ffffff; --ink: #1d2127; --soft: #59616c; --grid: #e4e7ec; --rest: #a9b4c2;
  --c0: #1f6fd0; --c1: #d9641b; --c2: #128a68; --c3: #8250c8; --c4: #b8325a; }
@media (prefers-color-scheme: dark) {
:root { --surface: #15181d; --ink: #e8ebf0; --soft: #a2abb8; --grid: #2b313a; --rest: #596475;
  --c0: #5ba3f5; --c1: #f2914e; --c2: #3cc09a; --c3: #b094f0; --c4: #ee7897; } }
"""
"""Of a page and of a plot alike."""

MARKS = """
svg.plot { display: block; width: 100%; height: auto; background: var(--surface); }
svg.plot text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
svg.plot text.soft { fill: var(--soft); }
svg.plot text.strong { font-weight: 650; }
svg.plot .grid { stroke: var(--grid); stroke-width: 1; }
svg.plot .aim { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 3 3; }
svg.plot path { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg.plot path.dashed { stroke-dasharray: 6 5; }
svg.plot .rest { fill: var(--rest); stroke: var(--rest); }
""" + "".join(
    f"svg.plot .c{n} {{ fill: var(--c{n}); stroke: var(--c{n}); }} svg.plot path.c{n} {{ fill: none; }}\n"
    for n in range(5)
)


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    note: str = ""
    """Shown when pointed at."""
    strong: bool = True
    aim: float | None = None
    """Marked across the bar."""


@dataclass(frozen=True, slots=True)
class Range:
    """p50, p99 and max of something."""

    label: str
    marks: tuple[float, ...]
    note: str = ""
    strong: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    dots: bool = True


def standalone(plot: str) -> str:
    """As a file: with its own colours."""
    head, rest = plot.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}{MARKS}</style>{rest}\n'


def bars(title: str, rows: Sequence[Bar], axis: Axis, *, written: Callable[[float], str] = compact) -> str:
    """One bar a row, its value behind it."""
    marks = []
    for row, top in zip(rows, _tops(rows), strict=True):
        width = max(1.0, _across(axis, row.value) - _LABELS)
        marks.append(_label(row.label, top, strong=row.strong))
        marks.append(
            f'<rect class="{"c0" if row.strong else "rest"}" stroke-width="0" x="{_LABELS}" y="{top + 5:.1f}" '
            f'width="{width:.1f}" height="{_ROW - 10}" rx="2">{_hint(row.label, written(row.value), row.note)}</rect>'
        )
        marks.append(
            f'<text class="{"strong" if row.strong else "soft"}" x="{_LABELS + width + 6:.1f}" '
            f'y="{top + _ROW / 2 + 4:.1f}">{escape(written(row.value))}</text>'
        )
        if row.aim is not None:
            marks.append(_aim(axis, row.aim, top))
    return _rows_plot(title, len(rows), axis, marks, written)


def ranges(title: str, rows: Sequence[Range], axis: Axis, *, written: Callable[[float], str] = compact) -> str:
    """A line from the first mark to the last: a dot for p50, a ring for p99, a tick for the longest."""
    marks = []
    for row, top in zip(rows, _tops(rows), strict=True):
        kind, middle = "c0" if row.strong else "rest", top + _ROW / 2
        places = [_across(axis, mark) for mark in row.marks]
        hint = _hint(row.label, " / ".join(map(written, row.marks)), row.note)
        marks.append(_label(row.label, top, strong=row.strong))
        marks.append(
            f'<line class="{kind}" stroke-width="2" x1="{places[0]:.1f}" x2="{places[-1]:.1f}" y1="{middle}" '
            f'y2="{middle}">{hint}</line>'
        )
        marks.append(f'<circle class="{kind}" cx="{places[0]:.1f}" cy="{middle}" r="4.5">{hint}</circle>')
        if len(places) > 1:
            marks.append(
                f'<circle class="{kind}" cx="{places[1]:.1f}" cy="{middle}" r="4.5" stroke-width="2" '
                f'style="fill: var(--surface)">{hint}</circle>'
            )
        if len(places) > 2:
            x = places[2]
            marks.append(
                f'<line class="{kind}" stroke-width="2" x1="{x:.1f}" x2="{x:.1f}" y1="{middle - 5}" '
                f'y2="{middle + 5}">{hint}</line>'
            )
        end = max(places) + 9
        text = " / ".join(map(written, row.marks))
        marks.append(f'<text class="soft" x="{end:.1f}" y="{middle + 4}">{escape(text)}</text>')
    return _rows_plot(title, len(rows), axis, marks, written)


def lines(
    title: str,
    drawn: Sequence[Line],
    across: Axis,
    up: Axis,
    *,
    unit: str,
    x_unit: str,
    height: int = 250,
    written_x: Callable[[float], str] = compact,
    event: tuple[float, str] | None = None,
) -> str:
    """Lines with their names at their ends. ``event``: an instant to mark."""
    left, right, top, bottom = 58, WIDTH - 150, 26, height - 40
    marks = [f'<text class="soft" x="{left - 6}" y="14" text-anchor="start">{escape(unit)}</text>']
    for tick in up.ticks:
        y = bottom - up.place(tick) * (bottom - top)
        marks.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{compact(tick)}</text>')
    for tick in across.ticks:
        x = left + across.place(tick) * (right - left)
        marks.append(
            f'<text class="soft" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(written_x(tick))}</text>'
        )
    marks.append(f'<text class="soft" x="{right}" y="{bottom + 34}" text-anchor="end">{escape(x_unit)}</text>')
    if event is not None:
        x = left + across.place(event[0]) * (right - left)
        marks.append(f'<line class="aim" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        marks.append(f'<text x="{x + 5:.1f}" y="{top + 4}">{escape(event[1])}</text>')
    ends: list[tuple[float, int, Line]] = []
    for number, line in enumerate(drawn):
        places = [
            (left + across.place(x) * (right - left), bottom - up.place(y) * (bottom - top)) for x, y in line.points
        ]
        path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dashed = " dashed" if line.dashed else ""
        marks.append(f'<path class="c{number % 5}{dashed}" d="{path}"/>')
        if line.dots:
            marks += [
                f'<circle class="c{number % 5}" stroke-width="0" cx="{x:.1f}" cy="{y:.1f}" r="4">'
                f"{_hint(line.label, f'{written_x(at)} {x_unit}: {compact(value)} {unit}')}</circle>"
                for (x, y), (at, value) in zip(places, line.points, strict=True)
            ]
        ends.append((places[-1][1], number, line))
    if len(ends) == 1:
        ends = []  # the title says what it is
    for y, number, line in _apart(ends, least=16.0, bottom=bottom):
        marks.append(
            f'<rect class="c{number % 5}" stroke-width="0" x="{right + 8}" y="{y - 5:.1f}" '
            f'width="10" height="10" rx="2"/>'
        )
        marks.append(f'<text x="{right + 23}" y="{y + 4:.1f}">{escape(line.label)}</text>')
    return _plot(title, height, marks)


def _apart(ends: Sequence[tuple[float, int, Line]], *, least: float, bottom: float) -> list[tuple[float, int, Line]]:
    """Names that would lie on each other are moved down, and all up again where the last left the plot."""
    placed: list[tuple[float, int, Line]] = []
    for y, number, line in sorted(ends, key=lambda end: end[:2]):
        placed.append((max(y, placed[-1][0] + least) if placed else y, number, line))
    limit = bottom
    for at in range(len(placed) - 1, -1, -1):
        y, number, line = placed[at]
        placed[at] = (min(y, limit), number, line)
        limit = placed[at][0] - least
    return placed


def _tops(rows: Sequence[object]) -> list[int]:
    return [6 + _ROW * number for number in range(len(rows))]


def _across(axis: Axis, value: float) -> float:
    return _LABELS + axis.place(value) * (WIDTH - _LABELS - _VALUES)


def _label(text: str, top: float, *, strong: bool) -> str:
    kind = "strong" if strong else "soft"
    return f'<text class="{kind}" x="{_LABELS - 10}" y="{top + _ROW / 2 + 4}" text-anchor="end">{escape(text)}</text>'


def _aim(axis: Axis, aim: float, top: float) -> str:
    x = _across(axis, aim)
    return f'<line class="aim" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 1}" y2="{top + _ROW - 1}"><title>aim</title></line>'


def _rows_plot(title: str, rows: int, axis: Axis, marks: Sequence[str], written: Callable[[float], str]) -> str:
    bottom = 6 + _ROW * rows
    grid = []
    for tick in axis.ticks:
        x = _across(axis, tick)
        grid.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{bottom}"/>')
        grid.append(
            f'<text class="soft" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(written(tick))}</text>'
        )
    return _plot(title, bottom + _TICKS, [*grid, *marks])


def _plot(title: str, height: int, marks: Sequence[str]) -> str:
    inside = "\n".join(marks)
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"\n<title>{escape(title)}</title>\n{inside}\n</svg>"
    )


def _hint(*parts: str) -> str:
    return f"<title>{escape(': '.join(part for part in parts if part))}</title>"
