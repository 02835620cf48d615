"""A clock that a test moves: moving time, and handling what falls due on the way, written once for both clocks.

It is done in steps, which generators yield: functions that a clock for threads calls, and one for asyncio awaits.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from shardq.core import forks
from shardq.core.calls import observe
from shardq.core.model.checks import clocks
from shardq.core.model.task import Delivery
from shardq.core.operation import Many, Operation, values
from shardq.delivery.batch import Batch
from shardq.delivery.functions import check_result
from shardq.delivery.job import Job, Lot, Unit
from shardq.engine.around import EngineAccess, EngineBase
from shardq.errors import InvalidOption
from shardq.testing.adoption import Adopted, BoundWorker, context_of, remove
from shardq.testing.virtual import EPOCH, US, VirtualTime, instant_us, moved
from shardq.testing.virtual_drivers import VirtualDriverFactory
from shardq.worker.base import WorkerBase, engine_of
from shardq.worker.lifecycle import Calls

LOOK_S = 0.01
"""The time between two looks for something to handle, in real time."""

FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""The errors that a handler fails with. All others, such as Ctrl-C and ``pytest.fail``, are meant for the test."""

PATIENCE_S = 10.0
"""The time for which pollers may be late in real time, on a busy machine."""

E = TypeVar("E", bound=EngineBase)
R = TypeVar("R")
T = TypeVar("T")
Handled = TypeVar("Handled")
Closed = TypeVar("Closed")

Steps = Generator[Callable[[], Any], Any, T]


class ClockBase(ABC, Generic[E, R, Handled, Closed]):
    """The base of ``Clock`` and ``AsyncClock``. ``Handled`` and ``Closed``: what ``advance`` and ``close`` return."""

    _kind: type[E]
    _run: Callable[..., Any]
    """Carries out an operation on a driver."""
    _sleep: Callable[[float], Any]
    _new_lock: Callable[[], Any]

    def __init__(
        self,
        url: str,
        *,
        start: dt.datetime | None = None,
        real_time: bool = False,
        too_long: Callable[[float], None] | None = None,
    ) -> None:
        """``url``: the server for the engines that are adopted. ``start``: the first now, by default the present.
        ``real_time``: time is not moved but waited for. ``too_long``: called with the seconds of each wait, so that it
        can refuse it.
        """
        if real_time and start is not None:
            raise InvalidOption("start= is not possible in real time: the server has its own clock")
        if not isinstance(url, str):
            raise InvalidOption(
                f"url can't be {url!r:.80}; name the server of the tests, such as redis://127.0.0.1:6379"
            )
        self.url = url
        self.real_time = real_time
        self._too_long = too_long
        first = dt.datetime.now(dt.UTC) if start is None else EPOCH + instant_us(start) * US
        self._time = VirtualTime(first)
        self._adopted: list[Adopted[E]] = []
        self._bound: list[BoundWorker] = []
        self._handling = False
        """True while handlers run: they can't move the clock."""
        self._deferring = False
        """True while rows and occurrences are pushed, which are handled afterwards."""
        self._again = False
        """True if something was pushed inline while handlers ran."""
        self._lock = self._new_lock()
        """Held while time moves and while handlers run."""

    def __repr__(self) -> str:
        kind = "real time" if self.real_time else "virtual time"
        return f"<{type(self).__name__} in {kind}, {self.now():%Y-%m-%d %H:%M:%S.%f} UTC>"

    def now(self) -> dt.datetime:
        """The present instant, in UTC.

        >>> engine.push("hi", at=clock.now() + dt.timedelta(days=1))
        """
        return dt.datetime.now(dt.UTC) if self.real_time else self._time.now

    def _now_ms(self) -> int:
        return self._time.now_us // 1000

    # ---- engines and workers

    def adopt(self, engine: E, *, shards: int | None = None) -> E:
        """Lets an engine of your program go by this clock, until ``close``: on the clock's server, under a new name,
        with ``shards`` shards if given. Returns the engine, which must not be open yet.

        >>> engine = clock.adopt(shardq.Engine(name="shop"))
        """
        if not isinstance(engine, self._kind):
            raise InvalidOption(
                f"{engine!r:.80} can't go by {self!r}: a Clock (shardq_clock) moves an Engine, and an AsyncClock "
                "(shardq_async_clock) an AsyncEngine"
            )
        adopted = Adopted(engine, self._time, real_time=self.real_time)
        name = f"test-{uuid.uuid4().hex[:16]}"
        adopted.begin(self._factory(adopted), url=self.url, name=name, shards=shards)
        self._adopted.append(adopted)
        if not self.real_time and self._now_ms not in clocks:
            clocks.append(self._now_ms)  # from now on, pushes into an outbox count by it, and expiries are checked
        return engine

    def bind(self, worker: WorkerBase[R], *, inline: bool = False, raising: bool = False) -> None:
        """From now on, what falls due is handled by the worker's handlers: one by one, each at its own instant. They
        run in the test, and end as in ``worker.run()``: in an ack, a retry after the backoff, or a burial. A handler of
        batches gets what is due at one instant, or was pushed by one call; ``linger`` waits for nothing.

        ``inline``: also as part of each push. ``raising``: the call that moved the clock, or pushed, raises the
        exception of a handler, after the task was settled; the clock stands at that instant.

        >>> clock.bind(worker)
        >>> deliveries = clock.advance(days=1)
        """
        if not isinstance(worker, WorkerBase):
            raise InvalidOption(f"{worker!r:.80} is not a worker; give one that engine.worker() has made")
        adopted = next((each for each in self._adopted if each.engine is engine_of(worker)), None)
        if adopted is None:
            raise InvalidOption(f"{worker!r} is of an engine that this clock does not move; give that to clock.adopt()")
        self._bound.append(BoundWorker(adopted, worker, inline=inline, raising=raising))

    def close(self) -> Closed:
        """Closes the adopted engines, removes their tasks, and gives the engines back as they were.

        >>> clock.close()
        """
        return self._carry_out(self._closing())  # type: ignore[no-any-return]

    def _closing(self) -> Steps[None]:
        for bound in self._bound:
            yield partial(self._called, bound.end())
        adopted, self._adopted = self._adopted, []
        self._bound = []
        if self._now_ms in clocks:
            clocks.remove(self._now_ms)
        for each in adopted:
            engine: Any = each.engine
            try:
                if each.has_tasks:
                    yield engine.open
                    yield engine.stop
                    driver = yield EngineAccess(engine).open_driver
                    yield partial(self._run, driver, remove(EngineAccess(engine).cache))
            finally:
                try:
                    yield engine.close
                finally:
                    each.end()

    # ---- moving time

    def advance(
        self,
        delta: dt.timedelta | None = None,
        /,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> Handled:
        """Moves time on. All that falls due on the way is dispatched in due order, each task at its own instant, and
        handled there if a worker is bound: what a handler pushes with a delay is part of it. Leases and dedup windows
        end on the way. Returns what was handled, in order. Without arguments: what is due now.

        In real time it waits.

        >>> deliveries = clock.advance(days=1, hours=2)
        >>> deliveries = clock.advance(dt.timedelta(minutes=5))
        """
        parts = {"weeks": weeks, "days": days, "hours": hours}
        parts |= {"minutes": minutes, "seconds": seconds, "milliseconds": milliseconds}
        return self.advance_to(moved(self.now(), delta, parts))

    def advance_to(self, when: dt.datetime) -> Handled:
        """Moves time on to an instant, an aware datetime. A clock can't go back.

        >>> deliveries = clock.advance_to(clock.now() + dt.timedelta(days=1))
        """
        target_us = instant_us(when)
        if self._handling:
            raise InvalidOption("a handler can't move the clock that it is handled by: push with a delay instead")
        return self._carry_out_alone(self._advancing(target_us, when))  # type: ignore[no-any-return]

    def _advancing(self, target_us: int, when: dt.datetime) -> Steps[list[Delivery]]:
        handled: list[Delivery] = []
        for bound in self._bound:
            if not bound.is_declared:
                yield partial(EngineAccess(bound.adopted.engine).declare_recurring, bound.functions)
                bound.is_declared = True
        if self.real_time:
            yield from self._wait(target_us, handled)
        elif target_us < self._time.now_us:
            raise InvalidOption(f"the clock can't go back: it shows {self.now()}, and {when} is before that")
        else:
            yield from self._pass(target_us, handled)
        return handled

    def _pass(self, target_us: int, handled: list[Delivery]) -> Steps[None]:
        for adopted in self._adopted:
            adopted.pollers.doubt()
        for bound in self._bound:
            bound.doubt()
        while True:
            yield from self._catch_up(handled)
            next_us = self._next_us()
            if next_us is None or next_us > target_us:
                break
            if not self._bound and not any(adopted.pollers.has_routes for adopted in self._adopted):
                # nothing sees the time in between, but schedules
                instants = [adopted.pollers.schedules_us for adopted in self._adopted]
                next_us = min([target_us, *(each for each in instants if each is not None)])
                for adopted in self._adopted:
                    yield from self._on(adopted, adopted.pollers.sweep(next_us))
            self._time.now_us = max(next_us, self._time.now_us)
        self._time.now_us = target_us
        for adopted in self._adopted:
            yield from self._on(adopted, adopted.pollers.trim())

    def _catch_up(self, handled: list[Delivery], *, inline: bool = False) -> Steps[None]:
        """Dispatches what is due by now, and has it handled until nothing is left."""
        progress = True
        while progress or self._again:
            progress = self._again = False
            for adopted in self._adopted:
                pollers = adopted.pollers
                if not inline:
                    self._deferring = True
                    try:
                        adopted.move_rows()
                        yield from self._on(adopted, pollers.serve_schedules())
                    finally:
                        self._deferring = False
                yield from self._on(adopted, pollers.catch_up())
                for bound in self._bound:
                    if bound.adopted is adopted:
                        bound.expect(pollers.arrived)
                pollers.arrived = set()
            for bound in self._bound:
                if bound.inline or not inline:
                    progress = (yield from self._handle(bound, handled)) or progress

    def _next_us(self) -> int | None:
        """The next instant at which something is to be done."""
        instants = [adopted.pollers.next_us() for adopted in self._adopted]
        for bound in self._bound:
            pause_us = bound.pause_us()
            instants.append(None if pause_us is None else self._time.now_us + pause_us)
        return min((each for each in instants if each is not None), default=None)

    def _wait(self, target_us: int, handled: list[Delivery]) -> Steps[None]:
        wait_s = target_us / 1e6 - time.time()
        if self._too_long is not None:
            self._too_long(wait_s)
        until = time.monotonic() + wait_s
        while True:
            left_s = until - time.monotonic()
            is_dispatched = left_s <= 0
            for adopted in self._adopted:
                if is_dispatched:
                    is_dispatched = yield from self._on(adopted, _is_dispatched(adopted.engine, target_us // 1000))
            progress = False
            for bound in self._bound:
                bound.doubt()
                progress = (yield from self._handle(bound, handled)) or progress
            if (is_dispatched and not progress) or left_s < -PATIENCE_S:
                return
            if not progress:
                pause_s = min(LOOK_S, left_s) if left_s > 0 and self._bound else max(LOOK_S, left_s)
                yield partial(self._sleep, pause_s)

    def _on(self, adopted: Adopted[E], operation: Operation[T]) -> Steps[T]:
        """Carries out an operation on an engine, which is opened, and has pollers in real time."""
        engine: Any = adopted.engine
        driver = yield EngineAccess(engine).open_driver
        if self.real_time:
            yield engine.start
        return (yield partial(self._run, driver, operation))  # type: ignore[no-any-return]

    # ---- handling

    def _handle(self, bound: BoundWorker, handled: list[Delivery]) -> Steps[bool]:
        """Claims and handles once. Returns True if there was something."""
        if not bound.has_begun:
            yield partial(self._called, bound.begin())
        units = yield from self._on(bound.adopted, bound.claim())
        if not units:
            return False
        self._handling = True
        try:
            for unit in units:
                if not bound.begin_handling(unit):
                    continue
                if isinstance(unit, Lot):
                    yield from self._handle_lot(bound, unit, handled)
                else:
                    failure, _ = yield from self._call(unit, unit.delivery)
                    handled.append(unit.delivery)
                    bound.conclude(unit, failure)
                if bound.failure is not None and bound.raising:
                    break
        finally:
            self._handling = False
            shards = yield from self._on(bound.adopted, bound.settle())
            for each in self._bound:
                if each.adopted is bound.adopted:
                    each.expect(shards)
        if bound.failure is not None and bound.raising:
            raise bound.failure
        return True

    def _handle_lot(self, bound: BoundWorker, lot: Lot, handled: list[Delivery]) -> Steps[None]:
        """Makes all calls of a lot, one after the other. What its handler gets comes to ``handled`` once."""
        jobs, calls = list(lot.jobs), bound.calls(lot)
        while (batch := contextvars.Context().run(calls.next)) is not None:
            failure, result = yield from self._call(lot, batch)
            context_of(batch).run(calls.ended, failure, result)
        handled += [job.delivery for job in jobs if job.began_at]

    def _call(self, unit: Unit, given: Delivery | Batch[Any]) -> Steps[tuple[BaseException | None, object]]:
        """Runs a handler. Returns the exception that it failed with, and its result; raises what is meant for the
        test.
        """
        failure: BaseException | None = None
        result: object = None
        depth = forks.depth()
        try:
            result = yield partial(self._result, unit, given)
            if result is not None and isinstance(unit, Job):
                check_result(result, unit.name, "handler")
        except FAILURES as exc:
            if self._is_cancelled(exc):
                raise
            failure = exc
        if forks.depth() != depth:
            forks.leave(failure)
        return failure, result

    # ---- what differs

    @abstractmethod
    def _factory(self, adopted: Adopted[E]) -> VirtualDriverFactory: ...

    @abstractmethod
    def _carry_out(self, steps: Steps[Any]) -> Any:
        """Takes one step after the other."""

    @abstractmethod
    def _carry_out_alone(self, steps: Steps[Any]) -> Any:
        """The same while no other call moves time or handles tasks."""

    @abstractmethod
    def _result(self, unit: Unit, given: Delivery | Batch[Any]) -> Any:
        """Runs a handler in an empty context, as in a worker. ``given``: the delivery, or the batch of one call."""

    @abstractmethod
    def _called(self, calls: Calls) -> Any:
        """Calls what a worker has registered for its start or its end."""

    def _is_cancelled(self, exc: BaseException) -> bool:
        """True if the test is cancelled, not the handler."""
        return False


def _is_dispatched(engine: EngineBase, target_ms: int) -> Operation[bool]:
    """True if no shard has a scheduled task that is due by then."""
    cache = EngineAccess(engine).cache
    calls = {keys.shard: observe.peek(keys, cache.topology.stamp, ()) for keys in cache.span()}
    counts: dict[int, observe.ShardCounts] = values((yield Many(calls)))
    return all(each.head_ms is None or each.head_ms > target_ms for each in counts.values())
