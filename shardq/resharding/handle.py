"""The handle that ``expand`` and ``shrink`` return: the new number is in force, and the dispatchers go on moving
tasks.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shardq.model.checks import check_seconds

log = logging.getLogger("shardq")

LOOK_S = 0.2

ALONE_S = 5.0
"""After so long, and again and again, a waiting caller checks if anybody moves the tasks. Longer than one dispatcher
needs to take over from another.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a change of the number of shards."""

    shards: int
    in_force: bool
    swept: int
    """Shards in which no task belongs elsewhere any more."""
    of: int
    moved: int
    """Tasks moved out of shards since those were opened, also out of shards that the change retires."""
    done: bool
    """True when every task is where it belongs, and the earlier number is forgotten."""

    @property
    def fraction(self) -> float:
        return 1.0 if self.done else self.swept / self.of


class _DispatcherWatch:
    """Warns a waiting caller, once, when no dispatcher runs."""

    def __init__(self) -> None:
        self._ask_at = time.monotonic() + ALONE_S

    @property
    def asks(self) -> bool:
        """True when it is time to note the dispatchers."""
        return time.monotonic() >= self._ask_at

    def note(self, dispatchers: Sequence[str]) -> None:
        self._ask_at = time.monotonic() + ALONE_S if dispatchers else math.inf
        if not dispatchers:
            log.warning(
                "waiting for a change of the number of shards, but no dispatcher runs to move the tasks: "
                "call engine.start() here or in another process, or start `shardq run`"
            )


class Growth:
    """A change of the number of shards: ``wait()`` for its end, or look at its ``progress``."""

    def __init__(self, look: Callable[[], Progress], dispatchers: Callable[[], Sequence[str]]) -> None:
        self._look = look
        self._dispatchers = dispatchers

    def __repr__(self) -> str:
        return f"<Growth: {self.progress}>"

    @property
    def progress(self) -> Progress:
        """Read anew each time."""
        return self._look()

    @property
    def done(self) -> bool:
        return self.progress.done

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every task is where it belongs. Returns False if that takes longer than ``timeout`` seconds.

        The dispatchers move the tasks; a warning is logged when none runs. Ready and leased tasks do not move: they are
        waited for.
        """
        until = _until(timeout)
        watch = _DispatcherWatch()
        while not self.done:
            if until is not None and time.monotonic() >= until:
                return False
            if watch.asks:
                watch.note(self._dispatchers())
            time.sleep(LOOK_S)
        return True


class AsyncGrowth:
    """A change of the number of shards: ``await growth.wait()`` for its end, or look at ``await growth.progress()``."""

    def __init__(
        self, look: Callable[[], Awaitable[Progress]], dispatchers: Callable[[], Awaitable[Sequence[str]]]
    ) -> None:
        self._look = look
        self._dispatchers = dispatchers

    async def progress(self) -> Progress:
        return await self._look()

    async def done(self) -> bool:
        return (await self.progress()).done

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  the twin's name
        """Waits until every task is where it belongs. Returns False if that takes longer than ``timeout`` seconds."""
        import asyncio  # Imported here, so that programs of threads need not load it.

        until = _until(timeout)
        watch = _DispatcherWatch()
        while not await self.done():
            if until is not None and time.monotonic() >= until:
                return False
            if watch.asks:
                watch.note(await self._dispatchers())
            await asyncio.sleep(LOOK_S)
        return True


def _until(timeout: float | None) -> float | None:
    """The end of a timeout, by the monotonic clock."""
    if timeout is None:
        return None
    check_seconds(timeout, "timeout")
    return time.monotonic() + timeout
