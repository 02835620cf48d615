"""The past and the future of an engine as lines: a bar for what was dispatched, and behind *now* for what falls due."""

from __future__ import annotations

import textwrap

import msgspec

from shardq.cli.forecast import LEAST_BAR, bar, block, width
from shardq.cli.options import Given
from shardq.cli.output import complain, say, tell
from shardq.engine.advice import named
from shardq.engine.tables import milliseconds
from shardq.features.history import History, HistoryPoint, first_known, incidents, resizes
from shardq.features.listing import Forecast
from shardq.features.listing.forecast import LABELS, Horizon


def print_timeline(given: Given, past: History, future: Forecast, horizon: Horizon) -> None:
    if given.json:
        tell({"past": msgspec.to_builtins(past), "future": msgspec.to_builtins(future)})
        return
    if future.missing:
        complain(f"{named(future.missing)} could not be seen: what falls due there is not counted")
    for line in drawn(past, future, LABELS[horizon], width=width(), block=block()):
        say(line)
    say(f"(UTC; it is {past.now:%Y-%m-%d %H:%M:%S})")


def drawn(past: History, future: Forecast, label: str, *, width: int, block: str = "#") -> list[str]:
    """A title, a line for each point from the first one that is known, a line for now, and one for each bucket."""
    wrong, resized = incidents(past), resizes(past)
    points = list(enumerate(past.points))[min(first_known(past), len(past.points) - 1) :]
    most = max(1, *(point.dispatched or 0 for _, point in points), *(count for _, count in future.buckets))
    digits = max(len("dispatched"), len(f"{most:,}"))
    title = (
        f"{'':{len(past.now.strftime(label))}}  {'dispatched':>{digits}}  {'handled':>9}  {'died':>6}  {'p99 ms':>6}"
    )
    room = width - len(title) - 2

    def bar_of(count: int, mark: str) -> str:
        return bar(count, most, room, mark) if room >= LEAST_BAR else ""

    lines = [title]
    for at, point in points:
        said = ", ".join(filter(None, (wrong.get(at), resized.get(at))))
        if point.minutes:
            line = f"{_figures(point, label, digits)}  {bar_of(point.dispatched or 0, block)}".rstrip()
        else:
            line = f"{point.start.strftime(label)}  {'-':>{digits}}"
        lines.append(line)
        if said:
            margin = " " * (len(point.start.strftime(label)) + 2)
            lines += textwrap.wrap(
                said, max(width, 2 * len(margin)), initial_indent=f"{margin}! ", subsequent_indent=f"{margin}  "
            )
    lines.append(f"-- now -- overdue {future.overdue:,}, later {future.later:,}; what falls due:")
    shade = "." if block == "#" else "\N{LIGHT SHADE}"
    for start, count in future.buckets:
        head = f"{start.strftime(label)}  {count:>{digits},}"
        lines.append(f"{head:<{len(title)}}  {bar_of(count, shade)}".rstrip())
    return lines


def _figures(point: HistoryPoint, label: str, digits: int) -> str:
    late = "-" if point.late_p99_ms is None else milliseconds(point.late_p99_ms)
    start = point.start.strftime(label)
    return f"{start}  {point.dispatched:>{digits},}  {point.handled:>9,}  {point.died:>6,}  {late:>6}"
