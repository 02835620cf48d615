"""top: the command with a live screen of the whole engine, and keys to sort, filter, pause and quit."""

from __future__ import annotations

import os
import select
import sys
import threading
from contextlib import ExitStack

import click

from shardq.cli.durations import read_by, seconds
from shardq.cli.looking import Looker
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.session import looking
from shardq.cli.signals import Ending
from shardq.cli.top.keys import Keyboard
from shardq.cli.top.screen import Screen
from shardq.cli.top.state import KEYS, VIEWS, State
from shardq.engine import Engine
from shardq.engine.snapshot import Snapshot, SnapshotReader, Snapshots

REDRAW_S = 0.5
"""The longest time between two screens: a window that changed its size is drawn anew by then."""

LEAST_S = 0.2

DEAD = 200
"""The dead tasks that are read to group their reasons, of those that died last."""


@click.command(
    short_help="A live screen of the whole engine.",
    epilog="\b\nkeys:\n"
    + "\n".join(f"  {keys:<30} {what}" for keys, what in KEYS)
    + "\n\b\nexample:\n  shardq top\n  shardq top --every 5s --view topics",
)
@click.option(
    "--every", default="1", show_default=True, metavar="TIME", callback=read_by(seconds), help="Look every so often."
)
@click.option("--view", type=click.Choice(VIEWS), default=VIEWS[0], show_default=True, help="The view to begin with.")
@shared
@pass_given
def top(given: Given, every: float, view: str) -> int:
    """Show the engine live: if all is well or why not, totals, rates, lateness, and one of its shards, nodes, topics,
    processes, dead tasks, or what will fall due.
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
        self._screen = Screen(f"{engine.name}: {engine.topology.shards} shards at {engine.options.safe_url}")
        self._looker = Looker(engine, SnapshotReader(engine, timeline=True, dead=DEAD).read, self._told, every_s)
        self._news: list[tuple[Snapshot | None, str]] = []
        self._lock = threading.Lock()
        self._ears, self._mouth = os.pipe()

    def run(self) -> int:
        """Draws until a key or a signal ends it. Returns the exit code."""
        from rich.console import Console
        from rich.live import Live

        console = Console()
        with ExitStack() as stack:
            ending = stack.enter_context(Ending())
            keyboard = stack.enter_context(Keyboard())
            live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop"))
            stack.callback(os.close, self._ears)
            stack.callback(os.close, self._mouth)
            stack.callback(self._looker.stop)
            self._looker.start()
            while not (ending.asked or self._state.ended):
                width, height = console.size
                live.update(self._screen.draw(self._snapshots, self._state, width=width, height=height), refresh=True)
                self._wait(ending, keyboard)
        return ending.code if ending.asked else 0

    def _wait(self, ending: Ending, keyboard: Keyboard) -> None:
        """Waits for news, and takes it in."""
        heard, _, _ = select.select([ending.fileno(), keyboard.fileno(), self._ears], [], [], REDRAW_S)
        if keyboard.fileno() in heard:
            keys = keyboard.read()
            if keys is None:
                self._state.ended = True
                return
            asked = self._state.looks
            for key in keys:
                self._state.press(key, columns=self._screen.columns, page=self._screen.page)
            if self._state.looks != asked:
                self._looker.now()
        if self._ears in heard:
            os.read(self._ears, 1024)
            with self._lock:
                news, self._news = self._news, []
            if not self._state.paused:
                for look, trouble in news:
                    if look is None:
                        self._snapshots.trouble = trouble
                    else:
                        self._snapshots.add(look)

    def _told(self, look: Snapshot | None, trouble: str) -> None:
        with self._lock:
            self._news.append((look, trouble))
        os.write(self._mouth, b"\0")
