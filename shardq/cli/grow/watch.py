"""How far a change of the number of shards is: one look, or a bar until it is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shardq.cli.fleet import NOBODY, sweeps
from shardq.cli.options import Given
from shardq.cli.output import complain, say
from shardq.dispatcher.membership import dispatchers
from shardq.drivers.sync import Driver
from shardq.engine import Engine
from shardq.layout.keys import control_keys, shard_keys
from shardq.operation import run
from shardq.resharding import Growth, Progress

LOOK_S = 0.5
"""Each look asks every shard for a few counts."""

PLAIN_S = 2.0
"""Between two lines where no bar can be drawn."""


@dataclass(frozen=True, slots=True)
class ProgressSample:
    progress: Progress
    moved: int
    """Tasks, since this command began."""
    expected: int
    """About so many, by the estimate made before; 0 when the change was under way by then."""
    draining: int
    """Ready and leased tasks: they are not moved, and those that belong elsewhere hold up the end."""
    dispatchers: int

    @property
    def line(self) -> str:
        progress = self.progress
        expected = f" of about {self.expected:,}" if self.expected else ""
        draining = f"; {self.draining:,} ready or running, not moved" if self.draining else ""
        return f"{self.moved:,}{expected} tasks moved, {progress.swept} of {progress.of} shards swept{draining}"


class ProgressWatcher:
    """Made before the change, to count from there."""

    def __init__(self, engine: Engine, driver: Driver, shards: int) -> None:
        self._engine = engine
        self._driver = driver
        # those that fall away go on counting when the engine has forgotten them
        count = max(shards, len(engine.topology.span()))
        self._shards = [shard_keys(engine.name, shard) for shard in range(count)]
        self._before: dict[int, int] = {}
        self._now: dict[int, int] = {}
        self._count()
        self._expected = engine.preview(shards).tasks

    def _count(self) -> int:
        """Tasks moved since the first count. A shard that does not answer stands as it was last seen."""
        for shard, sweep in sweeps(self._driver, self._shards).items():
            self._before.setdefault(shard, sweep.moved)
            self._now[shard] = sweep.moved
        return sum(self._now.values()) - sum(self._before.values())

    def look(self, growth: Growth) -> ProgressSample:
        progress = growth.progress()
        seen = self._engine.stats()
        return ProgressSample(
            progress=progress,
            moved=self._count(),
            expected=self._expected,
            draining=seen.ready + seen.leased,
            dispatchers=len(run(self._driver, dispatchers(control_keys(self._engine.name)))),
        )


def watched(given: Given, looker: ProgressWatcher, growth: Growth) -> ProgressSample:
    """Shows it until it is done; the last look."""
    with _display(given) as show:
        while True:
            look = looker.look(growth)
            show(look)
            if look.progress.done:
                return look
            time.sleep(LOOK_S)


@contextmanager
def _display(given: Given) -> Iterator[Callable[[ProgressSample], None]]:
    if not given.json and sys.stdout.isatty():
        with _bar() as show:
            yield show
        return
    said = -PLAIN_S
    alone = False

    def plain(look: ProgressSample) -> None:
        nonlocal said, alone
        lonely = not look.dispatchers and not look.progress.done
        if lonely and not alone:
            complain(NOBODY)
        alone = lonely
        if not given.json and not look.progress.done and time.monotonic() - said >= PLAIN_S:
            said = time.monotonic()
            say(look.line)
            sys.stdout.flush()

    yield plain


@contextmanager
def _bar() -> Iterator[Callable[[ProgressSample], None]]:
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(BarColumn(bar_width=20), TextColumn("{task.description}"), transient=True) as bar:
        task = bar.add_task("")

        def show(look: ProgressSample) -> None:
            bar.update(
                task,
                total=look.expected or None,  # with none it only shows that something goes on
                completed=min(look.moved, look.expected),
                description=NOBODY if not look.dispatchers and not look.progress.done else look.line,
            )

        yield show
