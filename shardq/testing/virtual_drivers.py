"""Drivers of an engine under a test's clock: they stamp virtual time into the calls that they send."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.dispatcher import Dispatcher, RouteServer
from shardq.core.drivers.aio import AsyncBegunCall, AsyncDriver
from shardq.core.drivers.owned import BegunCall, BorrowedConnections
from shardq.core.drivers.retry import Deadline, RetryingCall, Spare
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.operation import arun, run
from shardq.core.subscriber import Subscriber
from shardq.core.topology_cache import TopologyCache
from shardq.engine.around import DriverFactory
from shardq.errors import ShardqError
from shardq.testing.virtual import VirtualPollers

if TYPE_CHECKING:
    from shardq.features.far.loader import Loader

K = TypeVar("K")
T = TypeVar("T")

PUSHES = frozenset(("push", "push_unique", "requeue", "reschedule"))
"""The scripts after which something may be due at once, by the caller's wish."""


class VirtualDriver(Driver):
    """A driver whose calls go by virtual time. ``pushed`` is called after pushes."""

    def __init__(self, settings: Settings, pollers: VirtualPollers, pushed: Callable[[], None]) -> None:
        super().__init__(settings)
        self._pollers = pollers
        self._pushed = pushed

    def target(self, retrying: RetryingCall[Any]) -> str | None:
        self._pollers.stamp(retrying.request)
        return super().target(retrying)

    def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        name = _name(call)
        if name == "claim":
            run(self, self._pollers.catch_up(call.slot))
        result = super().call(call, timeout, deadline)
        if name in PUSHES:
            self._pushed()
        return result

    def call_all(
        self,
        calls: Iterable[tuple[K, Command[T]]],
        *,
        timeout: float | None = None,
        deadline: Deadline[K] = None,
        spare: Spare | None = None,
    ) -> Iterator[tuple[K, T | ShardqError]]:
        names: set[str] = set()

        def watched(pair: tuple[K, Command[T]]) -> tuple[K, Command[T]]:
            names.add(name := _name(pair[1]))
            if name == "claim":
                run(self, self._pollers.catch_up(pair[1].slot))
            return pair

        yield from super().call_all(map(watched, calls), timeout=timeout, deadline=deadline, spare=spare)
        if names & PUSHES:
            self._pushed()

    def begin(self, call: Command[T]) -> BegunCall[T] | None:
        """Nothing is sent ahead: what falls due when time moves is what the next claim finds."""
        return None

    @contextmanager
    def borrow(self, deadline: float) -> Iterator[BorrowedConnections]:
        with super().borrow(deadline) as borrowed:
            yield borrowed
        self._pushed()


class LoopNotingDriver(AsyncDriver):
    """A driver that says in which loops it is opened: ``entered`` is awaited there."""

    def __init__(self, settings: Settings, entered: Callable[[], Awaitable[None]]) -> None:
        super().__init__(settings)
        self._entered = entered

    async def open(self, deadline: float = math.inf) -> None:
        await self._entered()
        await super().open(deadline)


class AsyncVirtualDriver(LoopNotingDriver):
    """The twin; ``call_all`` makes its calls by ``call``."""

    def __init__(
        self,
        settings: Settings,
        entered: Callable[[], Awaitable[None]],
        pollers: VirtualPollers,
        pushed: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(settings, entered)
        self._pollers = pollers
        self._pushed = pushed

    def target(self, retrying: RetryingCall[Any]) -> str | None:
        self._pollers.stamp(retrying.request)
        return super().target(retrying)

    async def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        name = _name(call)
        if name == "claim":
            await arun(self, self._pollers.catch_up(call.slot))
        result = await super().call(call, timeout, deadline)
        if name in PUSHES:
            await self._pushed()
        return result

    def begin_all(self, calls: Sequence[tuple[Command[T], float]]) -> list[AsyncBegunCall[T] | None]:
        """Nothing is sent ahead, as with threads."""
        return [None] * len(calls)


def _name(call: Command[Any]) -> str:
    return call.script.name if isinstance(call, Call) else ""


class IdleDispatcher(Dispatcher):
    """The dispatcher of an engine under a virtual clock: ``start()`` runs no thread, as the clock dispatches."""

    def start(self, deadline: float) -> None:
        pass

    def stop(self) -> None:
        self._unlearn()


class VirtualDriverFactory(DriverFactory):
    """Makes the drivers and the dispatcher of an engine that goes by a clock.

    ``pollers``: those of its virtual time; None: it goes by the servers' clock. ``pushed`` is called after pushes.
    ``entered``, of an engine for asyncio, is awaited in each loop that it is opened in; ``pushed`` is awaited then, and
    what is pushed by the engine's threads is not handled inline.
    """

    is_of_test = True

    def __init__(
        self,
        pollers: VirtualPollers | None,
        pushed: Callable[[], Any],
        entered: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.has_threads: bool = pollers is None
        self._pollers = pollers
        self._pushed = pushed
        self._entered = entered

    def driver(self, settings: Settings) -> Driver:
        if self._pollers is None:
            return super().driver(settings)
        pushed = self._pushed if self._entered is None else _nothing
        self._pollers.driver = driver = VirtualDriver(settings, self._pollers, pushed)
        return driver

    def async_driver(self, settings: Settings) -> AsyncDriver:
        assert self._entered is not None, "the engine is one for asyncio"
        if self._pollers is None:
            return LoopNotingDriver(settings, self._entered)
        self._pollers.driver = driver = AsyncVirtualDriver(settings, self._entered, self._pollers, self._pushed)
        return driver

    def dispatcher(
        self,
        driver: Driver,
        cache: TopologyCache,
        subscriber: Subscriber,
        *,
        elsewhere: RouteServer,
        loader: Callable[[Dispatcher], Loader] | None = None,
    ) -> Dispatcher:
        if self._pollers is None:
            return super().dispatcher(driver, cache, subscriber, elsewhere=elsewhere, loader=loader)
        return IdleDispatcher(driver, cache, subscriber)


def _nothing() -> None: ...
