"""The parts of an engine under a test's clock: drivers that stamp virtual time into the calls they send."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.dispatcher import Dispatcher, Sinks
from shardq.core.drivers.aio import AsyncBegunCall, AsyncDriver
from shardq.core.drivers.owned import BegunCall, BorrowedConnections
from shardq.core.drivers.retry import Deadline, RetryingCall, Spare
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.operation import arun, run
from shardq.core.subscriber import Subscriber
from shardq.core.topology_cache import TopologyCache
from shardq.engine.parts import Parts
from shardq.errors import ShardqError
from shardq.testing.virtual import VirtualPollers

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

        def watched() -> Iterator[tuple[K, Command[T]]]:
            for key, call in calls:
                names.add(name := _name(call))
                if name == "claim":
                    run(self, self._pollers.catch_up(call.slot))
                yield key, call

        yield from super().call_all(watched(), timeout=timeout, deadline=deadline, spare=spare)
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


class VirtualParts(Parts):
    """The parts of an engine that goes by a virtual clock. ``pushed`` is called after pushes."""

    has_threads = False
    is_of_test = True

    def __init__(self, pollers: VirtualPollers, pushed: Callable[[], None] = lambda: None) -> None:
        self._pollers = pollers
        self._pushed = pushed

    def driver(self, settings: Settings) -> Driver:
        driver = VirtualDriver(settings, self._pollers, self._pushed)
        self._pollers.driver = driver
        return driver

    def dispatcher(
        self,
        driver: Driver,
        cache: TopologyCache,
        subscriber: Subscriber,
        *,
        sinks: Sinks,
    ) -> Dispatcher:
        return IdleDispatcher(driver, cache, subscriber)


class AsyncVirtualParts(VirtualParts):
    """The same of an engine for asyncio. What is pushed by its threads is not handled inline."""

    def __init__(
        self,
        pollers: VirtualPollers,
        entered: Callable[[], Awaitable[None]],
        pushed: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(pollers)
        self._entered = entered
        self._awaited_pushed = pushed

    def async_driver(self, settings: Settings) -> AsyncDriver:
        driver = AsyncVirtualDriver(settings, self._entered, self._pollers, self._awaited_pushed)
        self._pollers.driver = driver
        return driver


class RealParts(Parts):
    """The parts of an engine of a test that goes by the servers' clock."""

    is_of_test = True


class AsyncRealParts(RealParts):
    """The same for asyncio."""

    def __init__(self, entered: Callable[[], Awaitable[None]]) -> None:
        self._entered = entered

    def async_driver(self, settings: Settings) -> AsyncDriver:
        return LoopNotingDriver(settings, self._entered)
