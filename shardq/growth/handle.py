"""What ``expand`` and ``shrink`` give back: the new number is in force, the moving goes on in the dispatchers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shardq.model.checks import check_seconds

LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a change of the number of shards is."""

    shards: int
    in_force: bool
    swept: int
    """Shards in which nothing belongs elsewhere any more."""
    of: int
    moved: int
    """Tasks moved out of shards, since those were opened; also out of those that the change retires."""
    done: bool
    """Every task is where it belongs, and the earlier number is forgotten."""

    @property
    def fraction(self) -> float:
        return 1.0 if self.done else self.swept / self.of


class Growth:
    """``wait()`` for the end, or look at ``progress``."""

    def __init__(self, look: Callable[[], Progress]) -> None:
        self._look = look

    def __repr__(self) -> str:
        return f"<Growth: {self.progress}>"

    @property
    def progress(self) -> Progress:
        """Asked anew each time."""
        return self._look()

    @property
    def done(self) -> bool:
        return self.progress.done

    def wait(self, timeout: float | None = None) -> bool:
        """Until every task is where it belongs; False when that takes longer than ``timeout`` seconds.

        Needs running dispatchers: they do the moving. Ready and running tasks are waited for, where they are.
        """
        until = _until(timeout)
        while not self.done:
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(LOOK_S)
        return True


class AsyncGrowth:
    """The same on asyncio: ``await growth.progress()``, ``await growth.wait()``."""

    def __init__(self, look: Callable[[], Awaitable[Progress]]) -> None:
        self._look = look

    async def progress(self) -> Progress:
        return await self._look()

    async def done(self) -> bool:
        return (await self.progress()).done

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  the twin's name
        """Until every task is where it belongs; False when that takes longer than ``timeout`` seconds."""
        until = _until(timeout)
        while not await self.done():
            if until is not None and time.monotonic() >= until:
                return False
            await asyncio.sleep(LOOK_S)
        return True


def _until(timeout: float | None) -> float | None:
    """By the monotonic clock."""
    if timeout is None:
        return None
    check_seconds(timeout, "timeout")
    return time.monotonic() + timeout
