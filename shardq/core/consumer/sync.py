"""The consumer for threads: what becomes of a claim that Ctrl-C interrupts. Its twin is ``aio``."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from shardq.core.calls.consume import SettleStatus
from shardq.core.consumer.ahead import STALE_S, Ahead, BegunClaim
from shardq.core.consumer.claiming import GIVE_BACK_S, claim, give_back, give_back_leases
from shardq.core.consumer.claims import ClaimNotes, Claims
from shardq.core.consumer.consuming_sync import Consuming
from shardq.core.consumer.settling import SettlementsByShard, settle
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.sync import Driver
from shardq.core.model.task import Delivery
from shardq.core.operation import Begun, begin, run
from shardq.errors import ShardqError

log = logging.getLogger("shardq.consumer")

Work = Begun[list[Delivery]]


class Consumer(Consuming):
    """Claims ready tasks of its topics, the first topic first, and settles them. For one thread at a time.

    >>> for delivery in consumer.claim(100, wait=1.0):
    ...     handle(delivery.payload)
    ...     consumer.ack(delivery)
    """

    def __init__(
        self, driver: Driver, claims: Claims, wakeups: Callable[[float], Wakeups], watch: AheadWatch | None = None
    ) -> None:
        """``watch``: claims ahead, and has what is held for too long given back."""
        ahead = None if watch is None else Ahead[Work](claims.lease_ms / 1000)
        super().__init__(wakeups, ahead)
        self._driver = driver
        self._claims = claims
        self._watch = watch
        self._holder = None if ahead is None else AheadHolder(driver, claims, ahead)

    def __repr__(self) -> str:
        return f"<Consumer {self._claims.name} of {self._claims.topics}>"

    def _opened(self, within: float = 0.0) -> float:
        """It was made of an open engine."""
        return time.monotonic() + within + self._driver.settings.timeout

    def _new_event(self) -> threading.Event:
        return threading.Event()

    def _claimed(
        self, max: int, deadline: float, shards: Sequence[int] | None = None, wakeups: Wakeups | None = None
    ) -> list[Delivery]:
        notes = ClaimNotes()
        if shards is None:
            shards = self._claims.cache.topology.span()
        filled = None if self._ahead is None else partial(self._filled, max)
        steps = claim(self._claims, notes, max, shards, wakeups, filled)
        try:
            return run(self._driver, steps, deadline=deadline)
        except ShardqError:
            raise
        except BaseException:
            # Ctrl-C: the caller will not handle what was claimed meanwhile.
            run(self._driver, give_back(self._claims, notes), deadline=time.monotonic() + GIVE_BACK_S)
            raise

    def _begun(self, size: int) -> BegunClaim[Work] | None:
        claims, notes, since = self._claims, ClaimNotes(), time.monotonic()
        steps = claim(claims, notes, size, claims.cache.topology.span(), filled=partial(self._filled, size))
        work = begin(self._driver, steps)
        return None if work is None else BegunClaim(work, notes, since)

    def _finished(self, begun: BegunClaim[Work], deadline: float) -> list[Delivery]:
        return _finished(self._driver, self._claims, begun, deadline)

    def _watch_ahead(self) -> None:
        if self._watch is not None and self._holder is not None:
            self._watch.note(self._holder)

    def _release(self) -> None:
        if self._watch is not None and self._holder is not None:
            self._watch.look_at(self._holder)

    def _settled(
        self, by_shard: SettlementsByShard, deadline: float, *, surely: bool = False
    ) -> dict[str, SettleStatus]:
        return run(self._driver, settle(self._claims, by_shard), deadline=deadline)

    def _end(self, delivery: Delivery, done: bool) -> None:
        self._settle_one(delivery, done)


class AheadHolder:
    """The deliveries and the claim that one consumer holds ahead, as the watch sees them."""

    def __init__(self, driver: Driver, claims: Claims, ahead: Ahead[Work]) -> None:
        self._driver = driver
        self._claims = claims
        self._ahead = ahead
        self.watched = False
        """True while the watch looks at it again and again."""

    def release_stale(self, now_s: float) -> bool:
        """Gives back what is stale at that time. Returns True if something is held still."""
        ahead = self._ahead
        with ahead.lock:
            if ahead.stale(now_s):
                begun, rest = ahead.empty()
                deadline = time.monotonic() + GIVE_BACK_S
                if begun is not None:
                    _finished(self._driver, self._claims, begun, deadline)
                run(self._driver, give_back_leases(self._claims, rest), deadline=deadline)
            return ahead.any


class AheadWatch:
    """The watch of one engine. Its thread begins with the first claim ahead, and sleeps while nothing is held."""

    def __init__(self) -> None:
        # A queue of this kind can be put into by the handler of a signal, which may call ``close()`` of a consumer.
        self._news: queue.SimpleQueue[AheadHolder | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def note(self, holder: AheadHolder) -> None:
        """Watches a consumer that holds something from now on."""
        if holder.watched:
            return
        holder.watched = True
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shardq-ahead", daemon=True)
                self._thread.start()
        self.look_at(holder)

    def look_at(self, holder: AheadHolder) -> None:
        """Has a consumer looked at now. May be called by the handler of a signal."""
        self._news.put(holder)

    def close(self) -> None:
        """Gives everything back; what a dead server is not told of in time comes back when its lease runs out."""
        self._news.put(None)
        if self._thread is not None:
            self._thread.join(GIVE_BACK_S)

    def _run(self) -> None:
        holders: set[AheadHolder] = set()
        due = 0.0
        while True:
            try:
                holder = self._news.get(timeout=max(0.0, due - time.monotonic()) if holders else None)
            except queue.Empty:
                pass
            else:
                if holder is None:
                    _look(holders, holders, math.inf)
                    return
                holders.add(holder)
                _look(holders, {holder}, time.monotonic())
            now = time.monotonic()
            if now >= due:
                _look(holders, holders, now)
                due = now + STALE_S / 2


def _look(holders: set[AheadHolder], some: set[AheadHolder], now_s: float) -> None:
    """Has some of the holders give back what is stale, and forgets those that hold nothing."""
    for holder in list(some):
        # Before the look: what it claims after that is noted anew.
        holder.watched = False
        try:
            holder.watched = holder.release_stale(now_s)
        except ShardqError as exc:
            log.debug("what was claimed ahead could not be given back: %s", exc)
        if not holder.watched:
            holders.discard(holder)


def _finished(driver: Driver, claims: Claims, begun: BegunClaim[Work], deadline: float) -> list[Delivery]:
    try:
        return begun.work.finish(deadline)
    except ShardqError:
        return []
    except BaseException:
        # Ctrl-C, as above.
        run(driver, give_back(claims, begun.notes), deadline=time.monotonic() + GIVE_BACK_S)
        raise
