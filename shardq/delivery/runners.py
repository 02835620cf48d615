"""Runs handlers: functions on threads, and coroutine functions on an event loop, the caller's or one of our own.

A task of asyncio, a *runner task*, takes one job after the other as long as their handlers return without giving
control to the loop: a task for each would cost more than the rest of a job's way through the worker. A handler that
waits for something has the rest of its task for itself, and others begin in new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from shardq.core import forks
from shardq.core.calls.consume import SettleHold
from shardq.core.threads import ended
from shardq.delivery.batch import Batch
from shardq.delivery.calling import LotCalls, Note
from shardq.delivery.current import CURRENT
from shardq.delivery.functions import check_result
from shardq.delivery.hooks import Hooks
from shardq.delivery.in_flight import InFlight
from shardq.delivery.job import Job, Lot, Unit, call_hooks, settlement_of
from shardq.delivery.logs import log, tell
from shardq.delivery.strays import Strays

sinks_log: logging.Logger = logging.getLogger("shardq.sinks")

BLOCKED_TICKS = 20
"""Ticks without an answer of the loop, a second's worth, after which it counts as blocked. Ticks and not time: when the
whole process stood still, the loop did, too, and deserves to be asked again.
"""

IDLE_S = 2.0
"""A shared thread ends after so long without work."""

Work = Callable[[], object]

TURN_S = 0.001
"""Handlers that wait for nothing keep the loop from its other callbacks for so long, all runner tasks together."""


def conclude(in_flight: InFlight, hooks: Hooks, job: Job, failure: BaseException | None) -> None:
    """Settles the job of a handler that ended, unless it is settled already, and calls the hooks. None: it returned."""
    if failure is None:  # without a call more: this is done for each task
        if in_flight.finish(job, job.delivery):
            hooks.after(job.delivery)
            if log.isEnabledFor(logging.INFO):
                _tell_done(job)
        return
    settlement = settlement_of(job, failure)
    if in_flight.finish(job, settlement):
        if isinstance(settlement, SettleHold):
            in_flight.hold(job.delivery)
        call_hooks(hooks, job, settlement, failure)


def _tell_done(job: Job) -> None:
    task, seconds = job.delivery, time.monotonic() - job.began_at
    fields = {"task_id": task.id, "topic": task.topic, "attempt": task.attempt, "seconds": round(seconds, 3)}
    tell(logging.INFO, "task %s is done: %s took %.3f s", task.id, job.name, seconds, extra=fields)


class ThreadRunner:
    """The threads of one worker. A function can't be stopped from outside: one that has timed out keeps its thread, and
    another thread takes its place.
    """

    def __init__(self, in_flight: InFlight, hooks: Hooks, strays: Strays, note: Note, *, concurrency: int) -> None:
        self._in_flight = in_flight
        self._hooks = hooks
        self._strays = strays
        self._note = note
        self._concurrency = concurrency
        self._lock = threading.Lock()
        """Held while threads are made: several threads fetch."""
        self._threads: list[threading.Thread] = []

    def take(self, units: Sequence[Unit]) -> None:
        """Starts units, and makes more threads while none is idle."""
        short = self._in_flight.offer(units)
        if not short:
            return
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            busy = len(self._threads) - self._strays.functions
            for _ in range(min(short, self._concurrency - busy)):
                thread = threading.Thread(target=self._run, name="shardq-handler", daemon=True)
                thread.start()
                self._threads.append(thread)

    def end(self) -> None:
        """Ends the threads, after ``in_flight`` has ended. Threads stuck in a function are left behind: its task is
        settled.
        """
        ended(self._threads)

    def _run(self) -> None:
        strays = self._strays.units  # the thread of a stray ends when its function returns
        while unit := self._in_flight.next():
            # What a handler sets in its context is not for the next one on this thread.
            if isinstance(unit, Lot):
                self._do_lot(unit)
            else:
                contextvars.Context().run(self._do, unit)
            if unit in strays:
                self._strays.discard(unit)
                return

    def _do_lot(self, lot: Lot) -> None:
        calls = LotCalls(self._in_flight, self._hooks, lot, self._note)
        while (batch := calls.next()) is not None:
            contextvars.Context().run(self._do_batch, calls, batch)

    def _do(self, job: Job) -> None:
        failure: BaseException | None = None
        depth = forks.depth()
        CURRENT.set(job.delivery)
        self._hooks.before(job.delivery)
        try:
            if (result := job.handler.run(job.delivery)) is not None:
                check_result(result, job.name, "handler")
        except BaseException as exc:  # noqa: BLE001  whatever it was, SystemExit too: the task is settled
            failure = exc
        if forks.depth() != depth:
            forks.leave(failure)
        conclude(self._in_flight, self._hooks, job, failure)

    def _do_batch(self, calls: LotCalls, batch: Batch[Any]) -> None:
        failure: BaseException | None = None
        result: object = None
        depth = forks.depth()
        CURRENT.set(batch)
        try:
            result = calls.lot.handler.run(batch)
        except BaseException as exc:  # noqa: BLE001  likewise
            failure = exc
        if forks.depth() != depth:
            forks.leave(failure)
        calls.ended(failure, result)


class SharedThreads(ThreadRunner):
    """Threads for the lots of many handlers: begun for what waits, and ended when they have had nothing to do for
    ``IDLE_S``. Handlers whose last call was slow have part in half of them, so they keep no other waiting.
    """

    def __init__(self, in_flight: InFlight, hooks: Hooks, strays: Strays, note: Note, *, concurrency: int) -> None:
        super().__init__(in_flight, hooks, strays, note, concurrency=concurrency)
        self.freed: Callable[[], object] = lambda: None
        """Called when a place may be free."""
        self._changed = threading.Condition()
        self._waiting: tuple[deque[Work], deque[Work]] = deque(), deque()
        """What is to be done: quick, and slow."""
        self._running = [0, 0]
        self._count = self._idle = 0
        self._closed = False

    def places(self, *, slow: bool) -> int:
        """How many lots would be begun at once."""
        with self._changed:
            free = self._concurrency - sum(self._running) - len(self._waiting[0])
            if not slow:
                return free
            return min(free, self._concurrency // 2 - self._running[1]) - len(self._waiting[1])

    def take(self, units: Sequence[Unit]) -> None:
        for unit in units:
            assert isinstance(unit, Lot), "they are for handlers of batches"
            self.submit(partial(self._work_off, unit), slow=unit.room.is_slow)

    def submit(self, work: Work, *, slow: bool = False) -> None:
        """Has a thread do it."""
        with self._changed:
            self._waiting[slow].append(work)
            if self._idle >= len(self._waiting[0]) + len(self._waiting[1]) or self._count >= self._concurrency:
                self._changed.notify()
                return
            self._count += 1
        thread = threading.Thread(target=self._run, name="shardq-sink", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # no more threads in this system: the others do it, or it is given back
            with self._changed:
                self._count -= 1
            tell(logging.DEBUG, "no further thread could be begun: %s", exc, to=sinks_log)
            return
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)

    def end(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().end()

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            slow, work = taken
            try:
                work()
            except BaseException as exc:  # noqa: BLE001  no work may take a thread from the others
                tell(logging.ERROR, "work for a sink has failed", exc=exc, to=sinks_log)
            with self._changed:
                self._running[slow] -= 1
            self.freed()

    def _next(self) -> tuple[bool, Work] | None:
        """What is to be done next; None: the thread is to end."""
        with self._changed:
            while True:
                for slow, waiting in enumerate(self._waiting):
                    if waiting and (not slow or self._running[1] < self._concurrency // 2):
                        self._running[slow] += 1
                        return bool(slow), waiting.popleft()
                self._idle += 1
                told = not self._closed and self._changed.wait(IDLE_S)
                self._idle -= 1
                if not told and not self._waiting[0]:
                    self._count -= 1
                    return None

    def _work_off(self, lot: Lot) -> None:
        if self._in_flight.begin(lot):
            self._do_lot(lot)
        self._strays.discard(lot)


class CoroutineRunner:
    """Runs at most ``concurrency`` at once. ``loop=None``: on a loop of our own, made for the first coroutine."""

    def __init__(
        self,
        in_flight: InFlight,
        hooks: Hooks,
        strays: Strays,
        note: Note,
        *,
        concurrency: int,
        loop: asyncio.AbstractEventLoop | Callable[[], asyncio.AbstractEventLoop] | None,
    ) -> None:
        self._in_flight = in_flight
        self._hooks = hooks
        self._strays = strays
        self._note = note
        self._concurrency = concurrency
        self._lock = threading.Lock()
        """Held while the loop is made: several threads fetch."""
        self._enter = loop if callable(loop) else None
        self._loop = None if callable(loop) else loop
        self._thread: threading.Thread | None = None
        self._ending = False
        self._inbox: deque[Unit] = deque()
        self._places: set[asyncio.Task[None]] = set()
        """The runner tasks, strays apart. Kept here, because a loop does not keep its tasks."""
        self._fresh: set[asyncio.Task[None]] = set()
        """Runner tasks that have not begun yet."""
        self._tasks: dict[Unit, asyncio.Task[None]] = {}
        """The runner tasks of the units that run."""
        self._stray_tasks: dict[Unit, asyncio.Task[None]] = {}
        self._asked_at: float | None = None
        """The time at which the loop was asked for a sign of life that it still owes."""
        self._ticks = 0

    def take(self, units: Sequence[Unit]) -> None:
        """Starts units. May be called from any thread."""
        self._there().call_soon_threadsafe(self._start, units)

    def submit(self, work: Coroutine[Any, Any, object]) -> Future[object]:
        """Runs a coroutine that is no handler, on the handlers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._there())

    def _there(self) -> asyncio.AbstractEventLoop:
        """The loop, which is made if it is our own."""
        if self._loop is not None:
            return self._loop
        with self._lock:
            if self._loop is None and self._enter is not None:
                self._loop = self._enter()
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._own_loop, args=(loop,), name="shardq-coroutines", daemon=True
                )
                self._thread.start()
                self._loop = loop
            return self._loop

    @property
    def healthy(self) -> bool:
        """False when our own loop has ended."""
        return self._thread is None or self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """True when every coroutine has ended, strays apart."""
        return not self._places

    # ---- a loop that is blocked

    def look(self) -> None:
        """Asks the loop for a sign of life, or counts the ticks for which it owes one. Called once a tick, by one
        thread.
        """
        if self._loop is None:
            return
        if self._asked_at is not None:
            self._ticks += 1
            return
        self._ticks = 0
        self._asked_at = time.monotonic()
        # The caller's loop may have been closed: it never answers.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._asked_at = None

    @property
    def silent(self) -> bool:
        """True while the loop owes an answer, if only for a moment."""
        return self._asked_at is not None and self._ticks > 0

    @property
    def blocked(self) -> bool:
        return self._asked_at is not None and self._ticks >= BLOCKED_TICKS

    @property
    def blocked_s(self) -> float:
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    @property
    def at(self) -> str:
        """The name of the handler that the loop is in."""
        task = None if self._loop is None else asyncio.current_task(self._loop)
        for tasks in (self._tasks, self._stray_tasks):
            for unit, each in tasks.copy().items():
                if each is task:
                    return f"handler {unit.name}"
        return "a call that is not a handler" if task is None else f"{task.get_name()}, which is not a handler"

    # ---- ending

    def cancel(self, units: Sequence[Unit], unwind_s: float) -> None:
        """Cancels coroutines whose tasks are settled already. One that runs on for that long is a stray. From any
        thread.
        """
        if self._loop is not None:
            # The caller's loop may have been closed.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel, units, unwind_s)

    def end(self) -> None:
        """Ends our own loop; a thread that is stuck in a coroutine is left behind. The caller's loop goes on."""
        if self._thread is not None and self._loop is not None:
            self._ending = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)
            ended([self._thread])

    # ---- on the loop

    def _own_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._ending:
            try:
                loop.run_forever()
            except BaseException as exc:  # noqa: BLE001  SystemExit of a task that a handler made comes out here
                tell(logging.ERROR, "a task of a handler's own failed", exc=exc)
        with contextlib.suppress(BaseException):
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _start(self, units: Sequence[Unit]) -> None:
        self._inbox.extend(units)
        while self._inbox and self._inbox[0].stage == "done":
            # given back while every place was taken
            self._inbox.popleft()
        self._fill()

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(len(self._inbox) - len(self._fresh), self._concurrency - len(self._places))):
            task = loop.create_task(self._run())
            self._fresh.add(task)
            self._places.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        """A runner task has ended: its place is free, unless others had it already."""
        self._fresh.discard(task)
        self._places.discard(task)
        self._fill()

    async def _run(self) -> None:
        """Takes one job after the other, until one waits for something."""
        task = asyncio.current_task()
        assert task is not None, "it is a task's own coroutine"
        self._fresh.discard(task)
        turn_s = TURN_S / self._concurrency
        ends = time.monotonic() + turn_s
        while self._inbox:
            unit = self._inbox.popleft()
            if unit.stage == "done":
                continue
            self._tasks[unit] = task
            try:
                # In an empty context of its own, as functions have.
                if isinstance(unit, Lot):
                    waited = await self._do_lot(unit)
                else:
                    waited = await _stepped(self._do(unit), contextvars.Context())
            finally:
                if self._tasks.pop(unit, None) is None:
                    del self._stray_tasks[unit]
                    self._strays.discard(unit)
            if waited or task.cancelling():
                # What a handler notes about its task is not for the next one.
                return
            if time.monotonic() >= ends:
                await asyncio.sleep(0)
                ends = time.monotonic() + turn_s

    def _cancel(self, units: Sequence[Unit], unwind_s: float) -> None:
        for unit in units:
            if task := self._tasks.get(unit):
                task.cancel()
                asyncio.get_running_loop().call_later(unwind_s, self._give_up, unit)

    def _give_up(self, unit: Unit) -> None:
        if (task := self._tasks.pop(unit, None)) is not None:
            self._stray_tasks[unit] = task
            self._places.discard(task)
            self._strays.add(unit)
            self._strays.say(unit)
            self._fill()

    async def _do_lot(self, lot: Lot) -> bool:
        """Returns True if a call has waited for something."""
        waited = False
        if self._in_flight.begin(lot):
            calls = LotCalls(self._in_flight, self._hooks, lot, self._note)
            while (batch := calls.next()) is not None:
                waited |= await _stepped(self._do_batch(calls, batch), contextvars.Context())
        return waited

    async def _do_batch(self, calls: LotCalls, batch: Batch[Any]) -> None:
        failure: BaseException | None = None
        result: object = None
        depth = forks.depth()
        CURRENT.set(batch)
        try:
            result = await calls.lot.handler.run(batch)
        except BaseException as exc:  # noqa: BLE001  whatever it was, a cancellation too: the tasks are settled
            failure = exc
        if forks.depth() != depth:
            forks.leave(failure)
        calls.ended(failure, result)

    async def _do(self, job: Job) -> None:
        if not self._in_flight.begin(job):
            return
        failure: BaseException | None = None
        depth = forks.depth()
        CURRENT.set(job.delivery)
        self._hooks.before(job.delivery)
        try:
            if (result := await job.handler.run(job.delivery)) is not None:
                check_result(result, job.name, "handler")
        except BaseException as exc:  # noqa: BLE001  whatever it was, a cancellation too: the task is settled
            failure = exc
        if forks.depth() != depth:
            forks.leave(failure)
        if job.stage == "done" and isinstance(failure, asyncio.CancelledError):
            return  # Cancelled by us: the reason was logged when the task was settled.
        conclude(self._in_flight, self._hooks, job, failure)


@types.coroutine
def _stepped(work: Coroutine[Any, Any, None], context: contextvars.Context) -> Generator[Any, Any, bool]:
    """Awaits ``work`` in a context. Returns True if it has waited for something."""
    waited = False
    step: Callable[[], Any] = partial(work.send, None)
    while True:
        try:
            awaited = context.run(step)
        except StopIteration:
            return waited
        waited = True
        try:
            step = partial(work.send, (yield awaited))
        except GeneratorExit:  # a loop that is left as it is; the collector may have closed the handler before
            context.run(work.close)
            raise
        except BaseException as exc:  # noqa: BLE001  a cancellation, for one: it is the handler's
            step = partial(work.throw, exc)
