"""forecast: the command that draws how many tasks fall due, and when that is more than the fleet can handle. The past
and the future of ``stats --history`` are lines likewise: a bar for what was dispatched, and behind *now* for what falls
due.
"""

from __future__ import annotations

import shutil
import sys
import textwrap

import click
import msgspec

from shardq.cli.options import RATE, Given, command, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import looking
from shardq.engine.around import milliseconds, named
from shardq.features.history import History, first_known, incidents, resizes
from shardq.features.listing import Forecast
from shardq.features.listing.forecast import LABELS, STEPS, Horizon, exceeded, judged

WIDTH = 80
"""Columns where there is no terminal."""

LEAST_BAR = 8
"""Columns of the longest bar; where there is less room, none are drawn."""


@command("Draw how many tasks fall due, minute by minute.")
@click.argument("horizon", metavar="[hour|day|month]", type=click.Choice([*STEPS]), default="hour")
@click.option(
    "--capacity",
    type=RATE,
    help="Tasks a second that your workers can handle: drawn as a line, with a note where more fall due.",
)
@shared
def forecast(given: Given, horizon: Horizon, capacity: float | None) -> None:
    """Draw how many scheduled tasks fall due in each minute of the next hour, each hour of the next day or each day
    of the next month (30 days). Times are in UTC, by the servers' clock. It takes a few ms of each shard, however
    many tasks there are.

    example:
      shardq forecast                          (the next hour, by the minute)
      shardq forecast day --capacity 500/s     (what your workers can handle)
      shardq forecast month --json | jq .buckets
    """
    with looking(given) as engine:
        found = engine.forecast(horizon)
    over = None if capacity is None else exceeded(found, capacity)
    if given.json:
        fields = msgspec.structs.asdict(found) | {"step_s": found.step.total_seconds()}
        del fields["step"]
        fields["buckets"] = [{"start": start, "count": count} for start, count in found.buckets]
        tell(fields | {"total": found.total, "capacity": capacity, "exceeded": over and over[0]})
        return
    within, ahead = found.total - found.overdue - found.later, "an hour" if horizon == "hour" else f"a {horizon}"
    say(f"{found.total:,} scheduled: {found.overdue:,} overdue, {within:,} within {ahead}, {found.later:,} later")
    _complain_of_missing(found)
    for line in drawn(found, LABELS[horizon], width=width(), capacity=capacity, block=block()):
        say(line)
    say(f"(UTC; it is {found.now:%Y-%m-%d %H:%M:%S})")
    if capacity is not None:
        say(judged(found, horizon, capacity, over))


def drawn(found: Forecast, label: str, *, width: int, capacity: float | None = None, block: str = "#") -> list[str]:
    """One line for each bucket, within that width."""
    most = max(count for _, count in found.buckets)
    digits = len(f"{most:,}")
    heads = [f"{start.strftime(label)}  {count:>{digits},}" for start, count in found.buckets]
    room = width - len(heads[0]) - 3
    if room < LEAST_BAR or not most:
        return heads
    line = None if capacity is None else int(capacity * found.step.total_seconds() * room / most)
    lines = []
    for head, (_, count) in zip(heads, found.buckets, strict=True):
        shown = bar(count, most, room, block)
        if line is not None and line < room:
            shown = f"{shown:<{line + 1}}"
            shown = f"{shown[:line]}|{shown[line + 1 :]}"
        lines.append(f"{head}  {shown}".rstrip())
    return lines


def _complain_of_missing(found: Forecast) -> None:
    if found.missing:
        complain(f"{named(found.missing)} could not be seen: what falls due there is not counted")


def bar(count: int, most: int, room: int, block: str) -> str:
    """A task that is there is seen."""
    return block * max(count * room // most, 1 if count else 0)


def width() -> int:
    """The columns of the terminal."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


def block() -> str:
    """The character that bars are made of."""
    try:
        "\N{FULL BLOCK}".encode(sys.stdout.encoding)
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "\N{FULL BLOCK}"


def print_timeline(given: Given, past: History, future: Forecast, horizon: Horizon) -> None:
    if given.json:
        tell({"past": msgspec.to_builtins(past), "future": msgspec.to_builtins(future)})
        return
    _complain_of_missing(future)
    for line in timeline_lines(past, future, LABELS[horizon], width=width(), block=block()):
        say(line)
    say(f"(UTC; it is {past.now:%Y-%m-%d %H:%M:%S})")


def timeline_lines(past: History, future: Forecast, label: str, *, width: int, block: str = "#") -> list[str]:
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
        when = point.start.strftime(label)
        if point.minutes:
            late = milliseconds(point.late_p99_ms)
            figures = f"{point.dispatched:>{digits},}  {point.handled:>9,}  {point.died:>6,}  {late:>6}"
            lines.append(f"{when}  {figures}  {bar_of(point.dispatched or 0, block)}".rstrip())
        else:
            lines.append(f"{when}  {'-':>{digits}}")
        if said := ", ".join(filter(None, (wrong.get(at), resized.get(at)))):
            margin = " " * (len(when) + 2)
            room_for_words = max(width, 2 * len(margin))
            lines += textwrap.wrap(said, room_for_words, initial_indent=f"{margin}! ", subsequent_indent=f"{margin}  ")
    lines.append(f"-- now -- overdue {future.overdue:,}, later {future.later:,}; what falls due:")
    shade = "." if block == "#" else "\N{LIGHT SHADE}"
    for start, count in future.buckets:
        head = f"{start.strftime(label)}  {count:>{digits},}"
        lines.append(f"{head:<{len(title)}}  {bar_of(count, shade)}".rstrip())
    return lines
