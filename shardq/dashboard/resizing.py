"""A change of the number of shards that a page began: in the background of this process, one at a time.

What is begun here is announced to the whole fleet, and the dispatchers complete it: it does not end with this process.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from shardq.core.resharding.progress import Progress
from shardq.dashboard.asking import Asker
from shardq.errors import ChangeUnderWay, InvalidOption, ShardqError

FRESH_S = 0.8
"""An answer on the progress serves all pages that are open for so long."""


class StillMoving(ChangeUnderWay):
    """An earlier change is in force, and its tasks are still being moved."""

    def __init__(self, present: int, wanted: int) -> None:
        super().__init__(present, wanted)
        self.args = (
            f"the change to {present} shards is in force, and its tasks are still being moved, so there can be none to "
            f"{wanted} now; wait until every shard is swept",
        )


@dataclass(slots=True)
class Change:
    """The change that a page asked for."""

    shards: int
    rate: float | None
    error: str = ""


class Resizing:
    """The change that is under way, whoever began it. Used in one event loop."""

    def __init__(self, ask: Asker) -> None:
        self._ask = ask
        self._lock = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._progress: tuple[float, Progress] | None = None
        self._moved_before: tuple[int, int] | None = None
        """The number of shards that a page asked for, and the tasks that had ever been moved before."""
        self.asked: Change | None = None
        """The last change that a page asked for; its ``error`` says why it failed."""

    @property
    def is_beginning(self) -> bool:
        """True until the new number is in force, or has failed to be."""
        return self._running is not None and not self._running.done()

    async def begin(self, shards: int, rate: float | None) -> None:
        """Begins a change. Returns at once; refuses a second one."""
        self._check_none_begins(shards)
        progress = await self.progress()
        if not progress.done and progress.in_force and progress.shards != shards:
            raise StillMoving(progress.shards, shards)
        if progress.done and progress.shards == shards:
            raise InvalidOption(f"there are {shards} shards already, and every task is where it belongs")
        self._check_none_begins(shards)  # another page may have been faster
        self.asked = Change(shards, rate)
        self._moved_before = shards, progress.moved
        self._running = asyncio.create_task(self._run(self.asked))

    def _check_none_begins(self, shards: int) -> None:
        if self.is_beginning and self.asked is not None:
            raise ChangeUnderWay(self.asked.shards, shards)

    async def _run(self, change: Change) -> None:
        try:
            await self._ask(lambda engine: engine.resize(change.shards, rate=change.rate))
        except ShardqError as exc:
            change.error = str(exc)
        finally:
            self._progress = None

    async def progress(self) -> Progress:
        """How far the change is."""
        async with self._lock:
            if self._progress is None or time.monotonic() - self._progress[0] > FRESH_S:
                growth = await self._ask(lambda engine: engine.growth())
                self._progress = time.monotonic(), await self._ask(lambda _: growth.progress())
            return self._progress[1]

    def moved(self, progress: Progress) -> int | None:
        """Tasks that the change has moved since a page asked for it; None if none did."""
        if self._moved_before is None or self._moved_before[0] != progress.shards:
            return None
        return max(0, progress.moved - self._moved_before[1])
