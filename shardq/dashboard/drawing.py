"""Drawings as numbers: the templates write them as SVG. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardq.dashboard.snapshots import Column
from shardq.features.history import History, first_known, incidents, most_handled, resizes
from shardq.features.listing.forecast import Forecast

WIDTH, HEIGHT = 960, 240
"""The size of the chart of what falls due, with its axes."""

LEFT, BELOW, ABOVE = 56, 24, 12
"""Room for the axes' words."""


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    start: dt.datetime
    count: int
    is_over: bool
    """More falls due than can be handled in its time."""


class Chart(NamedTuple):
    bars: Sequence[Bar]
    counts: Sequence[tuple[float, int]]
    """Where the lines at round counts are, and the counts."""
    times: Sequence[tuple[float, str]]
    capacity_y: float | None
    """Where the line of what can be handled is; None without one, or if it is above all that falls due."""


def chart(found: Forecast, label: str, capacity: float | None) -> Chart:
    """Draws what falls due. ``label``: the form of its times. ``capacity``: tasks a second that can be handled."""
    step_s = found.step.total_seconds()
    most = None if capacity is None else capacity * step_s
    scale = _Scale(max((count for _, count in found.buckets), default=0), ABOVE, HEIGHT - BELOW)
    width = (WIDTH - LEFT) / max(1, len(found.buckets))
    bars = []
    for at, (start, count) in enumerate(found.buckets):
        high = scale.high(count)
        x = round(LEFT + at * width + 1, 1)
        over = most is not None and count > most
        bars.append(Bar(x, scale.bottom - high, round(width - 2, 1), high, start, count, over))
    times = [(bar.x, bar.start.strftime(label)) for bar in bars[:: max(1, math.ceil(len(bars) / 12))]]
    return Chart(bars, scale.lines, times, scale.y(most) if most is not None and most <= scale.top else None)


class _Scale:
    """The heights of counts of which ``most`` is the greatest, between two edges of a drawing."""

    def __init__(self, most: int, above: int, bottom: int) -> None:
        self.top, self.bottom, self._room = rounded_up(most), bottom, bottom - above
        self.lines = [(self.y(count), count) for count in (0, self.top // 2, self.top)]

    def y(self, count: float) -> float:
        return round(self.bottom - self._room * count / self.top, 1)

    def high(self, count: int) -> float:
        """The height of a bar: a task that is there is seen."""
        return max(round(self._room * count / self.top, 1), 1.5) if count else 0.0


def rounded_up(count: int) -> int:
    """The next round number, of which the half is one, too.

    >>> [rounded_up(count) for count in (0, 1, 3, 11, 99, 401, 700)]
    [2, 2, 4, 20, 100, 600, 800]
    """
    if count <= 2:
        return 2
    ten = int("1" + "0" * (len(str(count)) - 1))
    return next(times * ten for times in (1, 2, 4, 6, 8, 10) if times * ten >= count)


TIMELINE_HEIGHT = 232
_TOP, _BOTTOM = 30, 186
"""Where the bars of a timeline begin and end; incidents are above them."""
STRIP_Y, STRIP_HEIGHT = 194, 12
"""Where the lateness is, under the bars."""


BACKLOG_MIN = 10
"""Minutes with a backlog, before which nobody knows how much workers can handle: a new engine handles what comes."""


class Span(NamedTuple):
    """One column of a timeline."""

    x: float
    width: float
    bars: Sequence[tuple[str, float, float]]
    """Class, top and height."""
    level: int | None
    """The level of its lateness, of the heat map; None: it is not known, or nothing was dispatched."""
    is_unknown: bool
    """Nothing was recorded, though something was before."""
    words: str
    incident: str
    resize: str


class Timeline(NamedTuple):
    """The past and the future of an engine, side by side."""

    columns: Sequence[Span]
    counts: Sequence[tuple[float, int]]
    times: Sequence[tuple[float, str]]
    now_x: float
    capacity_y: float | None
    capacity: float | None
    """The most tasks a second that workers handled in one of its columns."""
    judges: bool
    """True if columns of which more falls due are marked."""


def timeline(past: History, future: Forecast, label: str) -> Timeline:
    """Draws what was dispatched, and what falls due: the column of now has both."""
    points, ahead = past.points, dict(future.buckets)
    first, capacity, step_s = first_known(past), most_handled(past), past.step.total_seconds()
    starts = [point.start for point in points]
    starts += [start for start in ahead if start > starts[-1]]
    judges = capacity is not None and past.backlog_minutes >= BACKLOG_MIN
    stacked = Counter({point.start: point.dispatched or 0 for point in points})
    stacked.update(ahead)
    most = max(stacked.values(), default=0)
    scale, width = _Scale(most, _TOP, _BOTTOM), (WIDTH - LEFT) / len(starts)
    high, wrong, resized = scale.high, incidents(past), resizes(past)
    columns = []
    for at, start in enumerate(starts):
        point = points[at] if at < len(points) else None
        is_unknown = point is not None and not point.minutes and first <= at < len(points) - 1
        done, due = (point.dispatched or 0) if point else 0, ahead.get(start, 0)
        words = ["not known"] if is_unknown else []
        bars: list[tuple[str, float, float]] = []
        if point is not None and point.minutes:
            bars.append(("bar", _BOTTOM - high(done), high(done)))
            words.append(
                f"{done:,} dispatched, {point.handled:,} handled, {point.failed:,} failed, {point.died:,} died"
            )
            if point.died:
                bars.append(("died", _BOTTOM - high(point.died), high(point.died)))
        if due:
            over = judges and capacity is not None and due > capacity * step_s
            bars.append(("much" if over else "due", _BOTTOM - high(done) - high(due), high(due)))
            words.append(f"{due:,} fall due")
        late_ms = point.late_p99_ms if point else None
        if late_ms is not None:
            words.append(f"{late_ms:,} ms late (p99)")
        columns.append(
            Span(
                x=round(LEFT + at * width, 1),
                width=round(max(width - 1.5, 1), 1),
                bars=[(kind, round(y, 1), height) for kind, y, height in bars if height],
                level=None if late_ms is None else _level([late_ms]),
                is_unknown=is_unknown,
                words=f"{start.strftime(label)}: {', '.join(words) or 'nothing'}",
                incident=wrong.get(at, ""),
                resize=resized.get(at, ""),
            )
        )
    capacity_y = None if capacity is None else scale.y(capacity * step_s)
    every = max(1, math.ceil(len(columns) / 10))
    times = [(columns[at].x, starts[at].strftime(label)) for at in range(0, len(columns), every)]
    return Timeline(
        columns,
        scale.lines,
        [(x, words) for x, words in times if x < WIDTH - 2 * LEFT],
        round(LEFT + width * (len(points) - 0.5), 1),
        None if capacity_y is None or capacity_y < _TOP else capacity_y,
        capacity,
        judges,
    )


LEVELS = ((10, "under 10 ms"), (50, "50 ms"), (250, "250 ms"), (1000, "1 s"), (5000, "5 s"), (math.inf, "more"))
"""The highest lateness in ms of each level of the heat map, and its words."""

MOST_ROWS = 64
"""Rows of the heat map; with more shards, a row is the worst of a few."""

CELL_WIDTH = 14
HIGH, LOW = 12, 7
"""The height of a cell with few shards, and with more than ``FEW``: all rows are on one screen."""
FEW = 32

MARGIN = 44
"""Room for the numbers of shards."""


class Heat(NamedTuple):
    """A map of shards by snapshots."""

    width: int
    height: int
    paths: Sequence[tuple[int, str]]
    """The cells of each level, as one path."""
    unseen: str
    """The cells of shards that could not be read, as one path."""
    rows: Sequence[tuple[float, str]]
    """Where the words of some rows are, and the words."""
    per_row: int
    worst: tuple[int, float, dt.datetime] | None
    """The shard that was later than all others, how late in ms, and when; None: none was late."""


def heat(columns: Sequence[Column], room: int) -> Heat:
    """The lateness of every shard at the last snapshots, the newest at the right. ``room``: for so many of them."""
    shards = sorted({shard for column in columns for shard in column.late_ms})
    per_row = max(1, math.ceil(len(shards) / MOST_ROWS))
    groups = [shards[at : at + per_row] for at in range(0, len(shards), per_row)]
    cell_height = HIGH if len(groups) <= FEW else LOW
    cells: list[list[str]] = [[] for _ in LEVELS]
    unseen: list[str] = []
    first = room - len(columns)
    for row, group in enumerate(groups):
        levels = [_level(column.late_ms.get(shard, 0.0) for shard in group) for column in columns]
        begin = 0
        for at in range(1, len(levels) + 1):
            if at == len(levels) or levels[at] != levels[begin]:
                x, width = MARGIN + (first + begin) * CELL_WIDTH, (at - begin) * CELL_WIDTH - 1
                level = levels[begin]
                (unseen if level is None else cells[level]).append(
                    f"M{x} {row * cell_height}h{width}v{cell_height - 1}h-{width}z"
                )
                begin = at
    each = max(1, math.ceil(len(groups) / 16))
    late = [(ms, shard, column.at) for column in columns for shard, ms in column.late_ms.items() if ms]
    worst = max(late, default=None)
    return Heat(
        width=MARGIN + room * CELL_WIDTH,
        height=max(1, len(groups)) * cell_height,
        paths=[(level, "".join(found)) for level, found in enumerate(cells) if found],
        unseen="".join(unseen),
        rows=[
            ((row + 1) * cell_height - 2, f"{group[0]}" if per_row == 1 else f"{group[0]}–{group[-1]}")
            for row, group in list(enumerate(groups))[::each]
        ],
        per_row=per_row,
        worst=None if worst is None else (worst[1], worst[0], worst[2]),
    )


def _level(late_ms: Iterable[float | None]) -> int | None:
    """The level of the worst of some shards; None if one of them could not be read."""
    worst = 0.0
    for each in late_ms:
        if each is None:
            return None
        worst = max(worst, each)
    return next(level for level, (most, _) in enumerate(LEVELS) if worst < most)
