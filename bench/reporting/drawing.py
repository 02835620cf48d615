"""matplotlib draws bars, ranges of percentiles and lines as SVG text, with colours and fonts left to CSS.

It draws with the light colours. Each is then replaced by its variable, so that one file shows in light and in dark
mode. The same figures give the same text: ids are hashed from the title, and nothing tells when it was drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

WIDTH = 760
"""In pixels; a page scales the plot."""

ROW = 26
"""The height of a bar or range with its gap, in pixels."""

COLOURS = {
    "surface": ("#ffffff", "#15181d"),
    "ink": ("#1d2127", "#e8ebf0"),
    "soft": ("#59616c", "#a2abb8"),
    "grid": ("#e4e7ec", "#2b313a"),
    "rest": ("#a9b4c2", "#596475"),
    "c0": ("#0f5fb8", "#5ba3f5"),
    "c1": ("#d9700f", "#f0a035"),
    "c2": ("#3f9f7f", "#1fa07c"),
    "c3": ("#6b2d73", "#f0b6e0"),
}
"""Each colour in light and in dark mode. Lines have ``c0`` and so on, which differ for colour-blind readers."""

LIGHT = {name: light for name, (light, _) in COLOURS.items()}
LINES = [colour for name, colour in LIGHT.items() if name.startswith("c")]
MARKERS = "os^D"
"""Each colour of a line has a marker of its own, so that colour is not the only difference."""

FONT = "DejaVu Sans"
"""This font comes with matplotlib, so every machine lays the text out alike. The reader's own font is shown instead."""

_ON_WHITE, _ON_BLACK = ("; ".join(f"--{name}: {pair[mode]}" for name, pair in COLOURS.items()) for mode in (0, 1))

STYLE = f"""
:root {{ {_ON_WHITE} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_ON_BLACK} }} }}
svg.plot {{ display: block; width: 100%; height: auto; stroke-linejoin: round;
  --font: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
"""
"""The variables of a plot. The page and each plot's own file hold them."""

DOTTED = (0, (2, 2))

matplotlib.rcdefaults()  # a reader's own settings are for plots of their own
matplotlib.rc("font", family=FONT, size=12)
matplotlib.rc("text", color=LIGHT["ink"], parse_math=False)
matplotlib.rc("figure", facecolor=LIGHT["surface"])
matplotlib.rc("axes", facecolor="none", grid=True, axisbelow=True, labelcolor=LIGHT["soft"])
matplotlib.rc("axes", titlelocation="left", titlesize=12, titlecolor=LIGHT["soft"])
matplotlib.rc("axes", autolimit_mode="round_numbers", xmargin=0, ymargin=0)  # axes reach from tick to tick
matplotlib.rc("axes.spines", left=False, right=False, top=False, bottom=False)
matplotlib.rc("xaxis", labellocation="right")
matplotlib.rc("xtick", labelcolor=LIGHT["soft"])
matplotlib.rc("ytick", labelcolor=LIGHT["soft"])
matplotlib.rc("xtick.major", size=0, pad=8)
matplotlib.rc("ytick.major", size=0, pad=8)
matplotlib.rc("grid", color=LIGHT["grid"], linewidth=1)
matplotlib.rc("lines", linewidth=2)
matplotlib.rc("legend", frameon=False, borderaxespad=0, handlelength=1.6)
matplotlib.rc("svg", fonttype="none")


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    note: str = ""
    """Shown when the pointer is on the bar."""
    strong: bool = True
    aim: float | None = None
    """Marked across the bar."""


@dataclass(frozen=True, slots=True)
class Range:
    """The p50, the p99 and perhaps the longest of some durations."""

    label: str
    marks: tuple[float, ...]
    note: str = ""
    """Shown when the pointer is on the range."""
    strong: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    dots: bool = True


def compact(value: float) -> str:
    """Writes a number in a few characters.

    >>> compact(1_500_000), compact(260_000), compact(1_234), compact(0.25), compact(-12.0)
    ('1.5 M', '260 k', '1,234', '0.25', '−12')
    """
    size = abs(value)
    if size >= 1e6:
        text = f"{value / 1e6:.3g} M"
    elif size >= 1e4:
        text = f"{value / 1e3:.3g} k"
    else:
        text = f"{value:,.0f}" if size >= 100 else f"{value:.3g}"
    return text.replace("-", "−")


def bars(title: str, rows: Sequence[Bar], *, written: Callable[[float], str] = compact) -> str:
    """Draws one bar a row, with its value behind it."""
    axes = _rows(rows)
    _ticks(axes.xaxis, written=written)
    drawn = axes.barh(range(len(rows)), [row.value for row in rows], height=0.62, color=[_colour(row) for row in rows])
    for place, (row, bar) in enumerate(zip(rows, drawn, strict=True)):
        value = written(row.value)
        bar.set_gid(_hint(row.label, value, row.note))
        if row.aim is not None:
            axes.vlines(row.aim, place - 0.46, place + 0.46, color=LIGHT["ink"], linestyle=DOTTED, linewidth=1.5)
        _write(axes, max(row.value, row.aim or 0), place, value, va="center_baseline", **_text(strong=row.strong))
    return _svg(axes, title)


def ranges(title: str, rows: Sequence[Range]) -> str:
    """Draws a line a row on a log scale: a dot at p50, a ring at p99, a tick at the longest."""
    axes = _rows(rows)
    axes.set_xscale("log")
    _ticks(axes.xaxis)
    for place, row in enumerate(rows):
        colour, text = _colour(row), " / ".join(map(compact, row.marks))
        hint = _hint(row.label, text, row.note)
        axes.plot(row.marks, [place] * len(row.marks), color=colour, gid=hint)
        for mark, shape, fill in zip(row.marks, "oo|", (colour, LIGHT["surface"], colour), strict=False):
            axes.plot(mark, place, shape, color=colour, mfc=fill, mew=2, ms=8, gid=hint)
        _write(axes, max(row.marks), place, text, va="center_baseline", **_text(strong=False))
    return _svg(axes, title)


def lines(
    title: str,
    drawn: Sequence[Line],
    *,
    unit: str,
    x_unit: str,
    log: Literal["", "x", "y", "xy"] = "",
    x_ticks: Sequence[float] = (),
    event: tuple[float, str] | None = None,
    height: int = 250,
) -> str:
    """Draws lines. Several have a legend in the order of their ends.

    ``log`` names the axes with a log scale; an upward axis without one begins at 0. ``x_ticks`` are all ticks of the
    axis across, written in full. ``event`` is an instant to mark.
    """
    axes = _axes(height, left=58, right=165, top=30, bottom=44)
    axes.grid(visible=False, axis="x")
    axes.set_title(unit, x=-0.06, pad=10)
    axes.set_xlabel(x_unit)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    else:
        axes.update_datalim([(0, 0)], updatex=False)
    x_written: Callable[[float], str] = "{:,.0f}".format if x_ticks else compact
    _ticks(axes.xaxis, x_ticks, written=x_written)
    _ticks(axes.yaxis)
    ends: list[tuple[float, Line2D]] = []
    for number, line in enumerate(drawn):
        colour, marker = LINES[number % len(LINES)], MARKERS[number % len(MARKERS)] if line.dots else ""
        x, y = zip(*line.points, strict=True)
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 7, "markeredgewidth": 0}
        # each marker is drawn by itself, so that it can tell its figures; the legend has its markers from the line
        whole = axes.plot(x, y, "--" if line.dashed else "-", label=line.label, markevery=[], **look)
        ends += [(y[-1], part) for part in whole]
        for at, value in line.points if line.dots else ():
            axes.plot(at, value, gid=_hint(line.label, f"{x_written(at)} {x_unit}: {compact(value)} {unit}"), **look)
    if event is not None:
        axes.axvline(event[0], color=LIGHT["ink"], linestyle=DOTTED, linewidth=1.5)
        _write(axes, event[0], 1, event[1], xycoords=axes.get_xaxis_transform())
    if len(drawn) > 1:
        ends.sort(key=lambda end: -end[0])
        axes.legend(handles=[part for _, part in ends], loc="upper left", bbox_to_anchor=(1.02, 1))
    return _svg(axes, title)


def standalone(plot: str) -> str:
    """Returns the plot as a file with its own style."""
    head, rest = plot.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>{rest}\n'


def _axes(height: int, *, left: int, right: int, top: int, bottom: int) -> Axes:
    """Makes axes with these margins, in pixels."""
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    inside = (left / WIDTH, bottom / height, 1 - (left + right) / WIDTH, 1 - (top + bottom) / height)
    return figure.add_axes(inside)


def _rows(rows: Sequence[Bar | Range]) -> Axes:
    """Makes axes with a label for each row."""
    axes = _axes(6 + ROW * len(rows) + 26, left=250, right=130, top=6, bottom=26)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set(**_text(strong=row.strong))
    return axes


def _ticks(axis: Axis, fixed: Sequence[float] = (), *, written: Callable[[float], str] = compact) -> None:
    """Sets ticks at 1, 2 or 5 times a power of ten, at the powers on a log scale, or where they are ``fixed``."""
    axis.set_minor_locator(NullLocator())
    if fixed:
        axis.set_ticks(fixed, [written(tick) for tick in fixed])
        return
    axis.set_major_locator(LogLocator(numticks=6) if axis.get_scale() == "log" else MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda value, _: written(value))


def _write(axes: Axes, x: float, y: float, text: str, **look: Any) -> None:
    """Writes text right of a place."""
    axes.annotate(text, (x, y), xytext=(8, 0), textcoords="offset points", annotation_clip=False, **look)


def _text(*, strong: bool) -> dict[str, Any]:
    return {"color": LIGHT["ink"], "weight": "bold"} if strong else {"color": LIGHT["soft"]}


def _colour(row: Bar | Range) -> str:
    return LIGHT["c0" if row.strong else "rest"]


def _hint(*parts: str) -> str:
    """Returns the id of a part that shows a text under the pointer. ``_svg`` makes that text of it."""
    return f"hint {': '.join(part for part in parts if part)}"


_UNWANTED = re.compile(
    r'<metadata>.*?</metadata>|<defs>\s*<(style|clipPath).*?</defs>| clip-path="[^"]*"| transform="rotate\(-0 [^"]*"'
    r'|<g id="[^"]*"/>',
    re.DOTALL,
)
"""Axes reach past all that is drawn, so nothing is clipped."""


def _svg(axes: Axes, title: str) -> str:
    """Returns the SVG element without ids that a page might have twice."""
    text = io.StringIO()
    figure = axes.get_figure(root=True)
    assert figure is not None
    with matplotlib.rc_context({"svg.hashsalt": title}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = _UNWANTED.sub("", svg)
    svg = re.sub(r"""<g id=(["'])hint (.*?)\1>""", r"<g><title>\2</title>", svg)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r"\s*\n\s*", " ", svg).replace("> <", ">\n<")
    svg = svg.replace("xlink:href", "href").replace(f"'{FONT}'", "var(--font)")
    for name, light in LIGHT.items():
        svg = svg.replace(light, f"var(--{name})")
    _, view, inside = re.split(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', svg)
    return (
        f'<svg class="plot" viewBox="{view}" role="img" aria-label="{escape(title)}">'
        f"\n<title>{escape(title)}</title>{inside.rstrip()}"
    )
