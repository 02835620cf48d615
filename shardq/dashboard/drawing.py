"""Drawings as numbers: the templates write them as SVG. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardq.dashboard.sampler import Column
from shardq.listing.forecast import Forecast

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


@dataclass(frozen=True, slots=True)
class Chart:
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
    top = rounded_up(max((count for _, count in found.buckets), default=0))
    room, width = HEIGHT - ABOVE - BELOW, (WIDTH - LEFT) / max(1, len(found.buckets))

    def y(count: float) -> float:
        return round(ABOVE + room * (1 - count / top), 1)

    bars = []
    for at, (start, count) in enumerate(found.buckets):
        high = max(round(room * count / top, 1), 1.5) if count else 0  # a task that is there is seen
        x = round(LEFT + at * width + 1, 1)
        over = most is not None and count > most
        bars.append(Bar(x, HEIGHT - BELOW - high, round(width - 2, 1), high, start, count, over))
    each = max(1, math.ceil(len(bars) / 12))
    return Chart(
        bars,
        [(y(count), count) for count in (0, top // 2, top)],
        [(bar.x, bar.start.strftime(label)) for bar in bars[::each]],
        y(most) if most is not None and most <= top else None,
    )


def rounded_up(count: int) -> int:
    """The next round number, of which the half is one, too.

    >>> [rounded_up(count) for count in (0, 1, 3, 11, 99, 401, 700)]
    [2, 2, 4, 20, 100, 600, 800]
    """
    if count <= 2:
        return 2
    ten = int("1" + "0" * (len(str(count)) - 1))
    return next(times * ten for times in (1, 2, 4, 6, 8, 10) if times * ten >= count)


LEVELS = ((10, "under 10 ms"), (50, "50 ms"), (250, "250 ms"), (1000, "1 s"), (5000, "5 s"), (math.inf, "more"))
"""The highest lateness in ms of each level of the heat map, and its words."""

MOST_ROWS = 64
"""Rows of the heat map; with more shards, a row is the worst of a few."""

CELL_WIDTH, CELL_HEIGHT = 14, 12

MARGIN = 44
"""Room for the numbers of shards."""


@dataclass(frozen=True, slots=True)
class Heat:
    """A map of shards by looks."""

    width: int
    height: int
    paths: Sequence[tuple[int, str]]
    """The cells of each level, as one path."""
    unseen: str
    """Those of shards that could not be read."""
    rows: Sequence[tuple[float, str]]
    """Where the words of some rows are, and the words."""
    per_row: int
    worst: tuple[int, float, dt.datetime] | None
    """The shard that was later than all others, how late in ms, and when; None: none was late."""


def heat(columns: Sequence[Column], looks: int) -> Heat:
    """The lateness of every shard at the last looks, the newest at the right. ``looks``: the room for them."""
    shards = sorted({shard for column in columns for shard in column.late_ms})
    per_row = max(1, math.ceil(len(shards) / MOST_ROWS))
    groups = [shards[at : at + per_row] for at in range(0, len(shards), per_row)]
    cells: list[list[str]] = [[] for _ in LEVELS]
    unseen: list[str] = []
    first = looks - len(columns)
    for row, group in enumerate(groups):
        levels = [_level(column.late_ms.get(shard, 0.0) for shard in group) for column in columns]
        begin = 0
        for at in range(1, len(levels) + 1):
            if at == len(levels) or levels[at] != levels[begin]:
                x, width = MARGIN + (first + begin) * CELL_WIDTH, (at - begin) * CELL_WIDTH - 1
                level = levels[begin]
                (unseen if level is None else cells[level]).append(
                    f"M{x} {row * CELL_HEIGHT}h{width}v{CELL_HEIGHT - 1}h-{width}z"
                )
                begin = at
    each = max(1, math.ceil(len(groups) / 16))
    late = [(ms, shard, column.at) for column in columns for shard, ms in column.late_ms.items() if ms]
    worst = max(late, default=None)
    return Heat(
        width=MARGIN + looks * CELL_WIDTH,
        height=max(1, len(groups)) * CELL_HEIGHT,
        paths=[(level, "".join(found)) for level, found in enumerate(cells) if found],
        unseen="".join(unseen),
        rows=[
            (row * CELL_HEIGHT + CELL_HEIGHT - 3, f"{group[0]}" if per_row == 1 else f"{group[0]}–{group[-1]}")
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
