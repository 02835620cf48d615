# Generated from aio.py by `make fmt`: change that one.
"""The consumers that engines return: claiming, waiting, settling. Those of asyncio and of threads differ in what
becomes of a request whose caller is interrupted, and of what is claimed ahead.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from shardq.core.calls.consume import SettleStatus
from shardq.core.consumer.claim_state import AskLengths, ClaimNotes, Claims, Sleep, WaitStrategy
from shardq.core.consumer.claiming import GIVE_BACK_S, ask_lengths, claim, give_back, give_back_leases
from shardq.core.consumer.policy import Bury, Hold, Retry, Snooze, alone
from shardq.core.consumer.prefetch import Ahead, AheadWatch, BegunClaim
from shardq.core.consumer.settling import (
    SettlementsByShard,
    acks_of,
    back_unbegun,
    by_shard,
    check_held,
    extend,
    noted,
    one_or_many,
    per_shard,
    settle,
    settlement_after,
)
from shardq.core.consumer.waiter_registry import Waiter
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.sync import Driver
from shardq.core.forks import OfOneProcess
from shardq.core.locks import SignalSafeEvent as Event
from shardq.core.model.checks import check_seconds, due_spec, duration_ms
from shardq.core.model.printable import quoted
from shardq.core.model.task import Delivery
from shardq.core.operation import Begun, Operation, begin, run
from shardq.errors import InvalidOption, LeaseLost, ShardqError

log: logging.Logger = logging.getLogger("shardq.consumer")

ITERATION_WAIT_S = 60.0
"""The wait of one claim under a loop over a consumer; ``close()`` ends it sooner."""


class SettlingBlock:
    """The block of ``consumer.settling``."""

    def __init__(self, end: Callable[[BaseException | None], bool]) -> None:
        self._end = end

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> bool:
        return self._end(exc)


class Consumer(OfOneProcess):
    """Claims ready tasks of its topics, the first topic first, and settles them. For one task or thread at a time.

    >>> for delivery in consumer.claim(100, wait=1.0):
    ...     handle(delivery.payload)
    ...     consumer.ack(delivery)
    """

    _closed = False
    _event: Event | None = None
    """A waiting claim sleeps on it."""

    def __init__(
        self, driver: Driver, claims: Claims, wakeups: Callable[[float], Wakeups], watch: AheadWatch | None = None
    ) -> None:
        """``watch``: claims ahead, and has what is held for too long given back."""
        self._driver = driver
        self._claims = claims
        self._wakeups = wakeups
        self._watch = watch
        ahead = Ahead[Begun[list[Delivery]]]
        self._ahead = None if watch is None else ahead(claims.lease_ms / 1000, self._release)

    def __repr__(self) -> str:
        return f"<Consumer {self._claims.name} of {self._claims.topics}>"

    def _opened(self, within: float = 0.0) -> float:
        """The deadline of a command, which takes the engine's timeout, and ``within`` seconds more."""
        return time.monotonic() + within + self._driver.settings.timeout

    # ---- trips

    def _steps(
        self, max: int, notes: ClaimNotes, shards: Sequence[int] | None = None, wakeups: Wakeups | None = None
    ) -> Operation[list[Delivery]]:
        """A claim from these shards; None: from all."""
        if shards is None:
            shards = self._claims.cache.topology.span()
        filled = None if self._ahead is None else partial(self._filled, max)
        return claim(self._claims, notes, max, shards, wakeups, filled)

    def _claimed(
        self, max: int, deadline: float, shards: Sequence[int] | None = None, wakeups: Wakeups | None = None
    ) -> list[Delivery]:
        notes = ClaimNotes()
        steps = self._steps(max, notes, shards, wakeups)
        try:
            return run(self._driver, steps, deadline=deadline)
        except ShardqError:
            raise
        except BaseException:
            self._interrupted(notes)
            raise

    def _interrupted(self, notes: ClaimNotes) -> None:
        """Gives back after Ctrl-C: the caller will not handle what was claimed meanwhile."""
        run(self._driver, give_back(self._claims, notes), deadline=time.monotonic() + GIVE_BACK_S)

    def _settled(
        self, settlements: SettlementsByShard, deadline: float, *, surely: bool = False
    ) -> dict[str, SettleStatus]:
        """Settles. ``surely``: also if the caller is cancelled meanwhile, as always where permits may go back."""
        steps = settle(self._claims, settlements)
        return run(self._driver, steps, deadline=deadline)

    # ---- claimed ahead

    def _begun(self, size: int) -> BegunClaim[Any] | None:
        """Begins a claim that was not asked for yet, if that can be done now."""
        notes, since = ClaimNotes(), time.monotonic()
        work = begin(self._driver, self._steps(size, notes))
        return None if work is None else BegunClaim(work, notes, since)

    def _finished(self, begun: BegunClaim[Any], deadline: float) -> list[Delivery]:
        """Returns what it gave; nothing if it has failed: the next claim meets the reason again."""
        try:
            deliveries: list[Delivery] = begun.work.finish(deadline)
            return deliveries
        except ShardqError:
            return []
        except BaseException:
            self._interrupted(begun.notes)
            raise

    def _watch_ahead(self) -> None:
        """Gives stale deliveries back, as long as anything is held."""
        if self._watch is not None and self._ahead is not None:
            self._watch.note(self._ahead)

    def _release(self, now_s: float) -> None:
        """Gives back what is stale at that time. In the watch's thread."""
        ahead = self._ahead
        assert ahead is not None, "it holds something"
        with ahead.lock:
            if ahead.stale(now_s):
                begun, rest = ahead.empty()
                deadline = time.monotonic() + GIVE_BACK_S
                if begun is not None:
                    self._finished(begun, deadline)
                run(self._driver, give_back_leases(self._claims, rest), deadline=deadline)

    # ---- commands

    def claim(self, max: int = 1, *, wait: float = 0.0) -> list[Delivery]:
        """Returns up to ``max`` deliveries under a lease; waits up to ``wait`` seconds for the first of them. Returns
        within ``wait`` and the engine's ``timeout``.

        If a server does not answer and others do, the claim waits for it no longer than a small part of the lease.

        >>> deliveries = consumer.claim(100, wait=1.0)
        """
        if not isinstance(max, int) or isinstance(max, bool) or max < 1:
            raise InvalidOption(f"a claim of max={quoted(max)} deliveries is not possible; give an int from 1")
        check_seconds(wait, "wait")
        deadline = self._opened(wait)
        ahead = self._ahead
        if ahead is not None and ahead.lock.held_here:  # a signal's handler has interrupted a claim of this consumer
            ahead = None
        if ahead is not None:
            ahead.pace.back(now := time.monotonic())
            ahead.wanted = max
            if deliveries := self._held(ahead, max, now, deadline):
                ahead.pace.handed(len(deliveries), time.monotonic())
                return deliveries
        deliveries = self._waited(max, wait, deadline) if wait else self._claimed(max, deadline)
        if ahead is not None:
            ahead.pace.handed(len(deliveries), time.monotonic())
        return deliveries

    def _held(self, ahead: Ahead[Any], max: int, now: float, deadline: float) -> list[Delivery]:
        """Up to ``max`` deliveries of what was claimed ahead."""
        deliveries = ahead.take(max, now)
        if not deliveries and (begun := ahead.take_begun(now)) is not None:
            claimed = self._finished(begun, deadline)
            deliveries = claimed[:max]
            if len(claimed) > max:
                ahead.hold(claimed[max:], begun.since)
                self._watch_ahead()
        if deliveries and self._may_claim_ahead() and ahead.begin(self._begun):
            self._watch_ahead()
        return deliveries

    def _filled(self, size: int) -> bool:
        """Begins the next claim when one of this size has all it wants. Returns True if it was begun."""
        ahead = self._ahead
        if ahead is None or not self._may_claim_ahead() or not ahead.filled(size, self._begun):
            return False
        self._watch_ahead()
        return True

    def _may_claim_ahead(self) -> bool:
        """Permits of a limited topic are for those who work; and what all shards refuse, no claim ahead gets."""
        claims = self._claims
        topology = claims.cache.topology
        limited = not topology.limits.keys().isdisjoint(claims.topics)
        return not limited and not claims.unreachable.again_at and bool(claims.open_topics(topology))

    def _waited(self, max: int, wait: float, deadline: float) -> list[Delivery]:
        """Claims, and waits for the first deliveries."""
        self._driver.check_open()
        timeout = self._driver.settings.timeout
        until = deadline - timeout
        wakeups = self._claims.limiter.wakeups = self._wakeups(deadline)
        if wakeups.waiters.lock.held_here:  # likewise, one of any consumer: this one takes what there is
            return self._claimed(max, deadline)
        event = self._event = Event()
        waiter = self._claims.waiter = Waiter(self._claims.wanted_topics(), event.set)
        strategy, look = WaitStrategy(self._claims, wakeups, waiter, until), self._claims.look
        try:
            wakeups.waiters.enter(waiter)
            while not self._closed and (step := strategy.step(now := time.monotonic())) is not None:
                if isinstance(step, Sleep):
                    event.wait(step.seconds if look is None else min(step.seconds, look.left_s(now)))
                    event.clear()
                    if look is not None and not look.left_s(time.monotonic()):
                        trip = min(deadline, time.monotonic() + timeout)
                        run(self._driver, look.look(self._claims.cache.control), deadline=trip)
                    continue
                # A server that is silent is reported after the timeout, however long the claim may wait.
                trip = min(deadline, now + timeout)
                if isinstance(step, AskLengths):
                    run(self._driver, ask_lengths(self._claims, step.shards, wakeups), deadline=trip)
                    continue
                if deliveries := self._claimed(max, trip, step.shards, wakeups if step.registering else None):
                    return deliveries
            return []
        finally:
            self._claims.waiter = None
            wakeups.waiter_left(waiter, self._claims.planner.left(self._claims.cache.topology.span()))

    def close(self) -> None:
        """Ends a claim that waits, and gives back what is claimed ahead. May be called from any thread. Later claims do
        not wait.

        >>> consumer.close()
        """
        self._closed = True
        if self._ahead is not None:
            self._ahead.close()
            self._watch_ahead()  # what it holds may be that of a claim that was interrupted
        event = self._event
        if event is not None:
            event.set()

    def __iter__(self) -> Iterator[Delivery]:
        """Deliveries one by one, until ``close()``: acked when the loop comes back for the next, retried when its body
        raises or leaves the loop.

        >>> for delivery in consumer:
        ...     handle(delivery.payload)
        """
        while not self._closed:
            for delivery in self.claim(1, wait=ITERATION_WAIT_S):
                done = False
                try:
                    yield delivery
                    done = True
                finally:
                    self._settle_one(delivery, done)

    def _settle_one(self, delivery: Delivery, done: bool) -> None:
        try:
            if done:
                self.ack(delivery)
            else:
                self.retry(delivery, reason="the loop over its consumer was left")
        except LeaseLost as exc:
            # Another consumer has it, which is no reason to end the loop.
            log.warning("%s", exc)

    def ack(self, deliveries: Delivery | Iterable[Delivery]) -> None:
        """Removes tasks that are done. Raises LeaseLost for tasks given to another consumer meanwhile, and SettleError
        if some shards could not be told; the rest are done.

        >>> consumer.ack(deliveries)
        """
        held = acks_of(one_or_many(deliveries))
        deadline = self._opened()
        check_held(self._settled(held, deadline), replaced_is_fine=True)

    def retry(
        self, deliveries: Delivery | Iterable[Delivery], *, delay: float | dt.timedelta = 0, reason: str = "retried"
    ) -> None:
        """Schedules tasks again after ``delay``, as failed attempts. A task without attempts left is dead, for
        ``reason``.

        >>> consumer.retry(delivery, delay=60, reason="the mail server is busy")
        """
        self._decide(deliveries, Retry(0 if delay is None else delay, reason))

    def bury(self, deliveries: Delivery | Iterable[Delivery], reason: str) -> None:
        """Makes tasks dead, for ``reason``. ``engine.requeue(id)`` brings one back.

        >>> consumer.bury(delivery, "no such address")
        """
        self._decide(deliveries, Bury(reason))

    def snooze(self, deliveries: Delivery | Iterable[Delivery], delay: float | dt.timedelta) -> None:
        """Schedules tasks again after ``delay``, unchanged. It is not a failure, and counts no attempt. A task that
        expires before (``expires=``) is dead when it falls due, with the reason ``expired``.

        >>> consumer.snooze(delivery, 60)
        """
        self._decide(deliveries, Snooze(delay))

    def hold(self, deliveries: Delivery | Iterable[Delivery], delay: float | dt.timedelta) -> None:
        """Has the keys of tasks wait for ``delay``. The tasks go back to the front of their keys; that counts no
        attempt. The topic of a task without a key is paused for so long.

        >>> consumer.hold(delivery, 60)
        """
        self._decide(deliveries, Hold(delay))

    def _decide(self, deliveries: Delivery | Iterable[Delivery], decision: Retry | Bury | Snooze) -> None:
        settlements = by_shard(
            (each, noted(settlement_after(each, decision), each.past)) for each in one_or_many(deliveries)
        )
        deadline = self._opened()
        check_held(self._settled(settlements, deadline), replaced_is_fine=False)

    def settling(
        self, deliveries: Delivery | Iterable[Delivery], *, delay: float | dt.timedelta | None = None
    ) -> SettlingBlock:
        """A block that settles one delivery, or many together, when it ends: acks them, or retries them if it raises.

        >>> with consumer.settling(delivery):
        ...     handle(delivery.payload)

        It retries them after ``delay`` seconds; None: after ``Backoff()``, as workers do. The exception goes on to the
        caller. ``Retry``, ``Bury``, ``Snooze`` and ``Hold`` work as in a worker's handlers, and end the block without
        an exception. KeyboardInterrupt, SystemExit or a cancellation is not a failure of the block: it goes on, and the
        deliveries are given back, without an attempt. Raises LeaseLost for deliveries given to another consumer
        meanwhile, or settled in the block; if an exception goes on, that is a note on it, and in the log.
        """
        held = one_or_many(deliveries)
        if delay is not None:
            due_spec(delay, None)
        return SettlingBlock(lambda exc: self._end_block(held, delay, exc))

    def _end_block(
        self, deliveries: list[Delivery], delay: float | dt.timedelta | None, exc: BaseException | None
    ) -> bool:
        """Settles the deliveries of a block. Returns True if its exception is a decision, which ends there."""
        failure = None if exc is None else alone(exc)
        leaving = failure is not None and not isinstance(failure, Exception)
        decided = isinstance(failure, Retry | Bury | Snooze)
        try:
            deadline = self._opened()
            if leaving:
                deadline = min(deadline, time.monotonic() + GIVE_BACK_S)
            if failure is None:
                settlements = acks_of(deliveries)
            elif leaving:
                settlements = back_unbegun(deliveries)
            else:
                settlements = by_shard(
                    (each, noted(settlement_after(each, failure, delay), each.past)) for each in deliveries
                )
            statuses = self._settled(settlements, deadline, surely=True)
            check_held(statuses, replaced_is_fine=failure is None)
        except ShardqError as fault:
            if exc is None or decided:
                raise
            # Not the text of the exception, which is the user's code.
            log.warning("deliveries could not be settled after a %s: %s", type(exc).__name__, fault)
            exc.add_note(f"its deliveries could not be settled: {fault}")
        return decided

    def extend(self, deliveries: Delivery | Iterable[Delivery], seconds: float | dt.timedelta) -> None:
        """Lets the leases end ``seconds`` from now. Raises LeaseLost for those no longer held.

        >>> consumer.extend(delivery, 60)
        """
        held = per_shard(one_or_many(deliveries))
        lease_ms = duration_ms(seconds, "seconds")
        deadline = self._opened()
        steps = extend(self._claims, held, lease_ms)
        check_held(run(self._driver, steps, deadline=deadline), replaced_is_fine=False)
