"""top: the command with a live screen of the whole engine, and keys to sort, filter, pause and quit. The screen is
drawn for a terminal of any size: the verdict, totals, rates and lateness with sparklines, and the table of the chosen
view.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardq import Engine
from shardq.cli.options import TIME, Given, command, shared
from shardq.cli.serving import Ending
from shardq.cli.session import Looker, looking
from shardq.cli.table import Table
from shardq.cli.top_keys import KEYS, VIEWS, Keyboard, State
from shardq.core.fleet import Lateness
from shardq.core.model.printable import printable
from shardq.engine.around import (
    Column,
    EngineAccess,
    Snapshot,
    SnapshotReader,
    Snapshots,
    View,
    age,
    counted,
    milliseconds,
    tables,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

REDRAW_S = 0.5
"""The longest time between two screens: a window that changed its size is drawn anew by then."""

LEAST_S = 0.2

_KEYS = "\n".join(("keys:", *(f"  {keys:<30} {what}" for keys, what in KEYS)))

DEAD = 200
"""The dead tasks that are read to group their reasons, of those that died last."""


@command("Show the whole engine live.", more=_KEYS)
@click.option("--every", default="1", show_default=True, type=TIME, help="Look again after this time.")
@click.option("--view", type=click.Choice(VIEWS), default=VIEWS[0], show_default=True, help="The view to begin with.")
@shared
def top(given: Given, every: float, view: str) -> int:
    """Show the engine live: whether all is well, totals, rates and lateness; below, one of its shards, nodes,
    topics, processes, dead tasks, or what will fall due.

    example:
      shardq top
      shardq top --every 5s --view topics
    """
    if every < LEAST_S:
        raise click.UsageError(f"--every looks every {LEAST_S:g} s at most: each look asks every shard")
    if given.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top is for a terminal; `shardq stats --json --watch 1` prints lines for programs")
    with looking(given) as engine:
        return _Loop(engine, every, State(view=view)).run()


class _Loop:
    """Draws whenever there is news: a key, a look, a signal."""

    def __init__(self, engine: Engine, every_s: float, state: State) -> None:
        self._state = state
        self._snapshots = Snapshots()
        self._screen = Screen(
            f"{engine.name}: {counted(engine.topology.shards, 'shard')} at {EngineAccess(engine).options.safe_url}"
        )
        self._looker = Looker(engine, SnapshotReader(engine, timeline=True, dead=DEAD).read, self._told, every_s)
        self._news: deque[tuple[Snapshot | None, str]] = deque()
        self._reader, self._writer = os.pipe()
        """Readable when there is news."""

    def run(self) -> int:
        """Draws until a key or a signal ends it. Returns the exit code."""
        from rich.console import Console
        from rich.live import Live

        console = Console()
        with ExitStack() as stack:
            ending = stack.enter_context(Ending())
            keyboard = stack.enter_context(Keyboard())
            live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop"))
            stack.callback(os.close, self._reader)
            stack.callback(os.close, self._writer)
            stack.callback(self._looker.stop)
            self._looker.start()
            while not (ending.asked or self._state.ended):
                width, height = console.size
                live.update(self._screen.draw(self._snapshots, self._state, width=width, height=height), refresh=True)
                self._wait(ending, keyboard)
        return ending.code if ending.asked else 0

    def _wait(self, ending: Ending, keyboard: Keyboard) -> None:
        """Waits for news, and takes it in."""
        heard, _, _ = select.select([ending.fileno(), keyboard.fileno(), self._reader], [], [], REDRAW_S)
        if keyboard.fileno() in heard:
            keys = keyboard.read()
            if keys is None:
                self._state.ended = True
                return
            asked = self._state.looks
            for key in keys:
                self._state.press(key, columns=self._screen.columns, page=self._screen.page)
            if self._state.looks != asked:
                self._looker.wake()
        if self._reader in heard:
            os.read(self._reader, 1024)
            while self._news:
                look, trouble = self._news.popleft()
                if self._state.paused:
                    continue
                if look is None:
                    self._snapshots.trouble = trouble
                else:
                    self._snapshots.add(look)

    def _told(self, look: Snapshot | None, trouble: str) -> None:
        self._news.append((look, trouble))
        os.write(self._writer, b"\0")


SPARKS = "▁▂▃▄▅▆▇█"

NARROW = 60
"""Below this width a line has no sparkline."""

LEAST = 8
"""Lines of the window below which only the verdict is shown."""

TABLE_AROUND = 3
"""Lines of a table beside its rows: titles, a rule, and the number of those that have no room."""


def sparkline(values: Sequence[float], width: int) -> str:
    """
    >>> sparkline([0, 1, 2, 4], 8)
    '▁▃▅█'
    """
    shown = list(values)[-width:]
    most = max(shown, default=0)
    return "".join(SPARKS[round((len(SPARKS) - 1) * value / most)] if most else SPARKS[0] for value in shown)


class Screen:
    """Draws looks. Keeps the tables, whose columns stay as wide as they ever were."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._tables: dict[str, Table[Any]] = {}
        self.columns: int = 1
        """The number of columns of the table that was drawn last."""
        self.page: int = 10
        """The rows that it had room for."""
        self._left_out: list[str] = []
        """The columns that it had no room for."""

    def draw(self, snapshots: Snapshots, state: State, *, width: int, height: int) -> RenderableType:
        from rich.console import Group

        if state.helping:
            return self._help(width)
        if state.reading:
            return self._reading(snapshots, state, width, height)
        head = self._head(snapshots, state, width, height)
        room = height - len(head) - 2
        body: list[RenderableType] = []
        self._left_out = []
        if snapshots.newest is not None and room > TABLE_AROUND:
            body = [self._tabs(state, width), *self._table(TABLES[state.view](snapshots.newest), state, width, room)]
        return Group(*head, *body, self._foot(state, width))

    def _head(self, snapshots: Snapshots, state: State, width: int, height: int) -> list[Text]:
        lines = [_line((self._title, "bold"), ("  paused" if state.paused else "", "yellow"), width=width)]
        look = snapshots.newest
        if snapshots.trouble:
            shown = f" (shown is what was read {age(time.monotonic() - look.at)} ago)" if look else ""
            lines.append(_line((f"cannot tell{shown}: ", "bold red"), (snapshots.trouble, ""), width=width))
        if look is None:
            return lines if snapshots.trouble else [*lines, _line(("looking …", ""), width=width)]
        if not snapshots.trouble:
            lines += _verdict(look, width, most=3 if height >= 2 * LEAST else 1)
        if height < LEAST:
            return lines
        return [*lines, *_figures(snapshots, look, width)]

    def _tabs(self, state: State, width: int) -> Text:
        from rich.text import Text

        tabs = Text(no_wrap=True, overflow="crop")
        for name in VIEWS:
            tabs.append(f" {name} ", style="reverse" if name == state.view else "")
        tabs.truncate(width)
        return tabs

    def _table(self, shown: View[Any], state: State, width: int, height: int) -> list[RenderableType]:
        sort = state.sorts.get(state.view)
        rows = shown.shown(sort=sort, turned=state.turned, filter=state.filter)
        self.columns = len(shown.columns)
        self.page = max(1, height - TABLE_AROUND)
        state.top = max(0, min(state.top, len(rows) - self.page))
        if not rows:
            said = f"nothing has {state.filter!r}" if state.filter and shown.rows else shown.empty
            return [_line((said, "dim"), width=width)]
        columns = [
            replace(column, title=f"{column.title} {'▲' if state.turned else '▼'}") if at == sort else column
            for at, column in enumerate(shown.columns)
        ]
        table = Table(*columns, red=shown.red, before=self._tables.get(state.view))
        self._tables[state.view] = table
        page = rows[state.top : state.top + self.page]
        drawn = table.drawn(page, width=width, more=len(rows) - state.top - len(page))
        self._left_out = table.left_out
        return [drawn]

    def _foot(self, state: State, width: int) -> Text:
        if state.typing or state.filter:
            cursor = "▏" if state.typing else "  (escape: all)"
            return _line((f"/{state.filter}{cursor}", "bold"), width=width)
        if self._left_out:
            return _line((f"? help  v verdict  no room for: {', '.join(self._left_out)}", "dim"), width=width)
        return _line(("q quit  p pause  s sort  / filter  1-6 view  v verdict  ? help", "dim"), width=width)

    def _reading(self, snapshots: Snapshots, state: State, width: int, height: int) -> RenderableType:
        """The verdict and the warnings, whole: as many lines as they take."""
        from rich.console import Console, Group
        from rich.text import Text

        look, parts = snapshots.newest, [Text.assemble(("cannot tell ", "bold red"), printable(snapshots.trouble))]
        parts = parts if snapshots.trouble else []
        if look is not None and look.health:
            parts.append(Text("ok", "bold green"))
        elif look is not None:
            parts += [Text("not ok", "bold red"), *(Text(f"- {printable(text)}") for text in look.health.reasons)]
        if look is not None and look.health.warnings:
            parts += [Text("warnings", "bold"), *(Text(f"- {printable(text)}") for text in look.health.warnings)]
        console = Console(width=width)
        lines = [line for part in parts for line in part.wrap(console, width)]
        self.page = max(1, height - 3)
        state.line = min(state.line, max(0, len(lines) - self.page))
        left = len(lines) - state.line - self.page
        foot = "any other key goes back" if len(lines) > self.page else "any key goes back"
        more = f"{left} more: down  " if left > 0 else ""
        title = _line((self._title, "bold"), width=width)
        return Group(title, *lines[state.line :][: self.page], _line((more + foot, "dim"), width=width))

    def _help(self, width: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        least = max(len(keys) for keys, _ in KEYS)
        lines = [Text(f"{keys:<{least}}  {what}") for keys, what in KEYS]
        return Group(Text("keys", style="bold"), *lines, Text("\nany key goes back", style="dim"))


def _line(*parts: tuple[str, str], width: int) -> Text:
    """One line, cut where the window ends."""
    from rich.text import Text

    line = Text(no_wrap=True, overflow="ellipsis")
    for text, style in parts:
        line.append(printable(text), style=style)
    line.truncate(width, overflow="ellipsis")
    return line


def _verdict(look: Snapshot, width: int, *, most: int) -> list[Text]:
    reasons = look.health.reasons
    if look.health:
        return [_line(("ok", "bold green"), width=width)]
    lines = [_line(("not ok: ", "bold red"), (reasons[0], ""), width=width)]
    lines += [_line(("        ", ""), (reason, ""), width=width) for reason in reasons[1:most]]
    if len(reasons) > most:
        lines.append(_line((f"        and {len(reasons) - most} more: press v", "dim"), width=width))
    return lines


def _figures(snapshots: Snapshots, look: Snapshot, width: int) -> list[Text]:
    stats, rates = look.stats, look.stats.rates
    states = ("scheduled", *(["held"] if stats.held else []), "ready", "leased", "dead")
    counts = "  ".join(f"{state} {stats.shown(getattr(stats, state))}" for state in states)
    per_s = "rates: the second look tells"
    if rates is not None:
        per_s = f"in {rates.scheduled:,.0f}/s  dispatched {rates.dispatched:,.0f}/s  taken {rates.taken:,.0f}/s"
        if snapshots.handled_per_s is not None:
            per_s += f"  handled {snapshots.handled_per_s:,.0f}/s"
    late = f"late {_quantiles(snapshots.late)}"
    if snapshots.picked_up.count:
        late += f"  to the handler {_quantiles(snapshots.picked_up)}"
    lines = [
        _line((counts, "bold"), width=width),
        _with_sparks(per_s, snapshots.dispatched, width),
        _with_sparks(late, snapshots.late_ms, width),
    ]
    if look.past is not None:
        points = look.past.points
        done = [point.dispatched or 0 for point in points]
        words = f"{sum(done):,} dispatched, {sum(point.died or 0 for point in points):,} died"
        lines.append(_with_sparks(f"last hour: {words}", done, width))
    if look.future is not None:
        buckets = [count for _, count in look.future.buckets]
        soon = f"due: overdue {look.future.overdue:,}  next minute {buckets[0]:,}  next hour {sum(buckets):,}"
        lines.append(_with_sparks(soon, buckets, width))
    return lines


def _with_sparks(text: str, values: Sequence[float], width: int) -> Text:
    room = width - len(text) - 2
    if width < NARROW or room < len(SPARKS) or not values:
        return _line((text, ""), width=width)
    return _line((f"{text}  ", ""), (sparkline(values, min(room, 60)), "cyan"), width=width)


def _quantiles(lateness: Lateness) -> str:
    if not lateness.count:
        return "-"
    return f"p50 {milliseconds(lateness.p50_ms)} ms p99 {milliseconds(lateness.p99_ms)} ms"


BAR = 40
"""The width of the longest bar of the future."""


def _future(snapshot: Snapshot) -> View[tuple[str, int]]:
    rows: list[tuple[str, int]] = []
    if snapshot.future is not None:
        buckets = ((f"{start.astimezone():%H:%M}", count) for start, count in snapshot.future.buckets)
        rows = [("overdue", snapshot.future.overdue), *buckets]
    most = max((count for _, count in rows), default=0) or 1
    unread = "not counted: this view needs every shard, and some can't be read"
    return View(
        (
            Column("due", lambda row: row[0]),
            Column("tasks", lambda row: f"{row[1]:,}", value=lambda row: row[1]),
            Column("", lambda row: "█" * round(BAR * row[1] / most), text=True),
        ),
        rows,
        lambda row: row[0] == "overdue" and row[1] > 0,
        unread if snapshot.stats.missing else "not counted yet",
    )


TABLES: dict[str, Callable[[Snapshot], View[Any]]] = {
    "shards": tables.shards,
    "nodes": tables.nodes,
    "topics": lambda snapshot: tables.topics(snapshot.health, tables.MOST_TOPICS),
    "fleet": lambda snapshot: tables.fleet(snapshot.fleet),
    "dead": tables.dead,
    "future": _future,
}
