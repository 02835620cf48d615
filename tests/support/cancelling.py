"""Cancels an operation of asyncio at each place where it waits, one place after the other.

    async for cut in cuts():
        result = await cut.of(engine.push(1))       # CANCELLED, or what it returned

An operation is cancelled in three ways at each of its waits: as it begins to wait, a few turns of the loop later, when
what it asked for is on its way, and in the turn in which what it waits for has come. Each cancellation must end it: one
that is dropped would leave a program running that was told to end. The last turn is the one in which it was over before
it could be cancelled.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeVar, get_args

from cluster.server import Server
from shardq import AsyncEngine
from tests.support.engines import SHARDS
from tests.support.states import FAR_S

T = TypeVar("T")

Main = Callable[[AsyncEngine], Coroutine[Any, Any, None]]
Make = Callable[..., AsyncEngine]

Moment = Literal["begun", "under way", "come"]

MOMENTS: tuple[Moment, ...] = get_args(Moment)

MOST_WAITS = 300
"""An operation that waits more often is no operation to be tried here."""

TURNS = 3

SOON_S = 30.0

DURABLE = {"appendonly": "yes", "appendfsync": "always"}
"""Options of a server on which durable pushes need not wait a second."""

CANCELLED: Final = object()


@dataclass
class Cut:
    """One attempt: to be cancelled at its nth wait."""

    number: int
    """Counts the attempts of an operation."""
    wait: int
    moment: Moment
    reached: bool = False
    told: bool = False
    """True once the task was cancelled before it was over."""

    async def of(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Returns the result of the work, or CANCELLED. In a task of its own, as its caller has one."""

        async def worked() -> Any:
            return await self._stepped(work)

        try:
            result = await asyncio.create_task(worked())
        except asyncio.CancelledError:
            return CANCELLED
        assert not self.told, f"cancelled at wait {self.wait}, {self.moment}, it went on and returned {result!r}"
        return result

    @types.coroutine
    def _stepped(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        task = asyncio.current_task()
        assert task is not None
        step: Callable[[], Any] = partial(work.send, None)
        waits = 0
        while True:
            try:
                awaited = step()
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration
            waits += 1
            if waits == self.wait:
                self.reached = True
                self._cancel(task, awaited)
            try:
                step = partial(work.send, (yield awaited))
            except BaseException as exc:  # noqa: BLE001  it is the work's
                step = partial(work.throw, exc)

    def _cancel(self, task: asyncio.Task[Any], awaited: asyncio.Future[Any] | None) -> None:
        def cancel(_: object = None) -> None:
            self.told = task.cancel()

        if self.moment == "under way":
            _after(TURNS, cancel)
        elif self.moment == "come" and awaited is not None:
            awaited.add_done_callback(cancel)
        else:
            cancel()


def _after(turns: int, call: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    if turns:
        loop.call_soon(_after, turns - 1, call)
    else:
        call()


async def cuts(*moments: Moment) -> AsyncIterator[Cut]:
    """Attempts, until one of them was over before its wait. ``moments``: the only ones to try; none given: all."""
    number = 0
    for moment in moments or MOMENTS:
        for wait in range(1, MOST_WAITS):
            cut = Cut(number, wait, moment)
            yield cut
            number += 1
            if not cut.reached:
                break
        else:
            raise AssertionError(f"it still waits after {MOST_WAITS} waits")


async def quiet() -> None:
    """Waits until only the caller's task is left: what cancelled callers left behind has ended."""

    async def alone() -> bool:
        return len(asyncio.all_tasks()) == 1

    await until(alone, "all other tasks of the loop have ended")


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], sentence: str) -> None:
    ends = asyncio.get_running_loop().time() + SOON_S
    while not await condition():
        assert asyncio.get_running_loop().time() < ends, sentence
        await asyncio.sleep(0.005)


def maker(server: Server, name: str) -> Make:
    """Makes engines on a server; ``part`` tells their names apart."""

    def make(part: object = "", **options: Any) -> AsyncEngine:
        return AsyncEngine(server.url, name=f"{name}{part}", shards=SHARDS, timeout=30.0, **options)

    return make


def run(engine: AsyncEngine, main: Main) -> None:
    """Runs a program with an open engine. Nothing of it is left in the loop when the engine is closed."""

    async def whole() -> None:
        async with engine:
            await main(engine)
            await engine.push("it goes on", topic="after", delay=FAR_S)
        await quiet()

    asyncio.run(whole())
