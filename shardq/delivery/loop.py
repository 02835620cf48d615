"""The running loop: everything between a claim and the settling of what was claimed.

Its threads: *fetch* claims as many deliveries as ``in_flight`` wants, one *batches of TOPIC* claims for each handler of
batches, *settle* sends settlements together, *watch* extends leases, ends what has timed out and gives back what was
fetched too early. Settlements that a shard does not take are sent again by a thread of their own, *settle again*, so
that those of the others don't wait. ``runners`` run functions and coroutines. All of them meet in ``in_flight`` only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait

from shardq.core.calls import node_info
from shardq.core.consumer.claim_state import Claims
from shardq.core.consumer.settling import Settlement, by_shard, extend, per_shard, settle
from shardq.core.consumer.sync import Consumer
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.sync import Driver
from shardq.core.locks import SignalSafeEvent
from shardq.core.model.ids import quoted_topic
from shardq.core.model.printable import counted
from shardq.core.operation import run
from shardq.core.threads import Loop, ended
from shardq.delivery.fetching import BatchFetch, Fetch, Source
from shardq.delivery.handler import Handler
from shardq.delivery.hooks import Hooks
from shardq.delivery.in_flight import InFlight
from shardq.delivery.job import Job, Lot, Unit, retries
from shardq.delivery.linger import Linger
from shardq.delivery.logs import Once, log
from shardq.delivery.logs import tell as tell_to
from shardq.delivery.runners import CoroutineRunner, ThreadRunner
from shardq.delivery.strays import Strays
from shardq.errors import SettleError, ShardqError

TICK_S = 0.05
"""The precision of timeouts."""

UNWIND_S = 0.25
"""The time that a cancelled coroutine has to end before others get its place; less than held jobs wait for a place."""

BACKOFF_S = 0.5
"""The pause after an error of the server."""

END_S = 3.0
"""The time after the grace, in all: for the last settlements, a claim in flight, and cancelled coroutines. A live
server needs some milliseconds of it.
"""

HURRY_S = 1.0
"""Like END_S, after a second signal."""

SLICE_S = 0.05
"""The length of one wait; a second signal is seen between two."""


class DeliveryLoop:
    """Runs handlers. Started once and stopped once."""

    log: logging.Logger = log
    what: str = "shardq-"
    """Begins the names of its threads."""

    def __init__(
        self,
        driver: Driver,
        claims: Claims,
        hooks: Hooks,
        *,
        concurrency: int,
        loop: asyncio.AbstractEventLoop | Callable[[], asyncio.AbstractEventLoop] | None,
        threads: type[ThreadRunner] = ThreadRunner,
    ) -> None:
        """``loop``: where coroutines run, or what gives it when there is one; None: on one of its own."""
        self._driver = driver
        self._claims = claims
        self._in_flight = InFlight(concurrency)
        self._strays = Strays(concurrency)
        parts = (self._in_flight, hooks, self._strays, self.note_call)
        self._thread_runner = threads(*parts, concurrency=concurrency)
        self._coroutine_runner = CoroutineRunner(*parts, concurrency=concurrency, loop=loop)
        self._stopping = threading.Event()
        self._until = math.inf
        """The time at which unsent settlements are given up: known once the grace is over."""
        self._unsent: list[tuple[Job, Settlement]] = []
        """Settlements that the last step could not send."""
        self._apart_lock = threading.Lock()
        self._apart: defaultdict[int, list[tuple[Job, Settlement]]] = defaultdict(list)
        """Shard → the settlements that it did not take, while other shards take theirs, and those that came since."""
        self._once = Once()
        self._coroutine_topics: frozenset[str] = frozenset()
        self._has_coroutines = False
        self._blocked = False
        """True if the loop was blocked at the last check."""
        self._full: frozenset[str] = frozenset()
        """The topics that had too many strays at the last check."""
        self._said_blocked = False
        self._began = False
        self._extend_at = 0.0
        self._fetches: list[Source] = []
        self._fetching: list[Loop] = []
        self._working = [self._loop("settle", self._settle), self._loop("watch", self._watch)]
        self._again = Loop(
            f"{self.what}settle again",
            self._settle_again,
            self.log,
            fails="settle fails at some shards, trying again",
            works="settle works again at all shards",
            longest_pause_s=BACKOFF_S,
        )
        """Begun when it is needed."""

    def _handle(self, handlers: Mapping[str, Handler], wakeups: Callable[[float], Wakeups], places: int) -> None:
        """Fetches for these handlers, before it is started. ``wakeups``: the engine's, by a deadline. ``places``: those
        of the loop.
        """
        driver, claims = self._driver, self._claims
        self._coroutine_topics = frozenset(topic for topic, handler in handlers.items() if handler.has_coroutines())
        self._has_coroutines = bool(self._coroutine_topics)
        single = [topic for topic, handler in handlers.items() if handler.batching is None]
        if single:
            consumer = Consumer(driver, claims.of(single), wakeups)
            self._fetch_by("fetch", Fetch(self._in_flight, consumer, handlers, start=self._start))
        for topic, handler in handlers.items():
            if (batching := handler.batching) is None:
                continue
            part, linger = claims.of([topic]), None
            if batching.linger_s:
                linger = Linger(driver, part, wakeups, size=batching.size, linger_s=batching.linger_s)
            consumer = Consumer(driver, part, wakeups)
            fetch = BatchFetch(self._in_flight, consumer, linger, handler, places=places, start=self._start)
            self._fetch_by(f"batches of {quoted_topic(topic)}", fetch)

    def _fetch_by(self, name: str, source: Source) -> None:
        """Fetches from a source, too, in a thread of this name."""
        self._fetches.append(source)
        self._fetching.append(self._loop(name, source.step))

    @property
    def _loops(self) -> list[Loop]:
        """Those that are always at work."""
        return [*self._fetching, *self._working]

    def _loop(self, name: str, duty: Callable[[], bool]) -> Loop:
        """A thread that repeats a duty until that returns False."""

        def step() -> float:
            if not duty():
                loop.stop()
            return 0.0

        fails, works = f"{name} fails, trying again", f"{name} works again"
        loop = Loop(f"{self.what}{name}", step, self.log, fails=fails, works=works, longest_pause_s=BACKOFF_S)
        return loop

    @property
    def name(self) -> str:
        """The name under which it reports."""
        return self._claims.name

    @property
    def at_work(self) -> bool:
        """True from its start until it is told to stop."""
        return self._began and not self._stopping.is_set()

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons why it can't do its work, a sentence each, before it is stopped."""
        return tuple(self._problems()) if self.at_work else ()

    @property
    def ended(self) -> tuple[str, ...]:
        """The threads that have ended before it was stopped, a sentence each: only a new process replaces them."""
        return tuple(self._ended()) if self.at_work else ()

    def _ended(self) -> Iterator[str]:
        for loop in self._loops:
            if not loop.is_alive:
                yield f"its thread {loop.name} has ended"
        if not self._coroutine_runner.healthy:
            yield "the thread of its event loop has ended"

    def not_ready(self) -> Iterator[str]:
        """The reasons why it serves nothing now. Asks the servers: a claim that waits would tell half a minute later
        that one is away, or is back.
        """
        slots = [some[0] for some in self._driver.slot_groups(keys.slot for keys in self._claims.cache.span()).values()]
        asked = {slot: node_info.clock(slot).briefly() for slot in slots}
        lost = [answer for _, answer in self._driver.call_all(asked.items()) if isinstance(answer, ShardqError)]
        if lost:
            yield f"a server can't be reached: {lost[0]}"
        yield from self._problems(answered=not lost)

    def _problems(self, *, answered: bool = False) -> Iterator[str]:
        """``answered``: all servers have answered just now."""
        yield from self._ended()
        for loop in (*self._loops, self._again):
            if loop.fault and not (answered and loop.fault_of_server):
                yield f"{loop.name.removeprefix(self.what)} fails, see its log"
        if self._blocked:
            runner = self._coroutine_runner
            yield (
                f"its event loop has not answered for {runner.blocked_s:,.1f} s, it is in {runner.at}; "
                "meanwhile nothing is claimed for coroutine functions"
            )
        for topic in sorted(self._full):
            yield (
                f"topic {quoted_topic(topic)} is not claimed: too many of its handlers run on after their tasks were "
                f"ended ({self._strays})"
            )

    @property
    def strays(self) -> Mapping[str, int]:
        """Handlers that run on after their tasks were ended, by name."""
        return self._strays.names

    def running(self) -> list[Unit]:
        """What handlers are at now."""
        return self._in_flight.unfinished()

    def start(self) -> None:
        for loop in self._loops:
            loop.start()
        self._began = True

    def wait_for(self, work: Awaitable[object], hurry: SignalSafeEvent) -> None:
        """Runs it on the loop of the handlers, and waits until it has ended. ``hurry`` cancels it."""

        async def run() -> None:
            await work

        running = self._coroutine_runner.submit(run())
        while not wait([running], SLICE_S).done:
            if hurry.is_set():
                running.cancel()
        running.result()

    def stop(self, grace: float, hurry: SignalSafeEvent, last: Callable[[], None] = lambda: None) -> None:
        """Ends in the order that ``Worker.run`` tells, each step for all tasks together. Step 4, sending what is not
        sent, takes ``END_S`` at most, or ``HURRY_S`` after ``hurry``. ``last``: called when the handlers have ended,
        while their loop still runs.
        """
        self._stopping.set()
        for loop in self._loops:
            loop.wake()
        self._in_flight.stop_fetching()
        for fetch in self._fetches:
            fetch.close()
        self._in_flight.give_back(self._in_flight.emptied())
        until = time.monotonic() + grace
        while not hurry.is_set() and time.monotonic() < until:
            if self._in_flight.wait_quiet(min(until, time.monotonic() + SLICE_S)):
                break
        self._until = time.monotonic() + END_S
        rest = self._in_flight.unfinished()
        if rest:
            self._tell(logging.WARNING, "giving back %s: the handlers have not finished", counted(len(rest), "task"))
            for unit in rest:
                if isinstance(unit, Lot):
                    self._in_flight.end_lot(unit)
                else:
                    self._in_flight.finish(unit, unit.back())
            self._coroutine_runner.cancel(rest, END_S)
        others = self._working
        # First, as they may still claim something.
        self._wait(lambda: not any(fetch.is_alive for fetch in self._fetching), hurry)
        self._in_flight.end()
        self._wait(lambda: not any(loop.is_alive for loop in others), hurry)
        for loop in others:
            loop.wake()  # one that waits for its next try gives up what it could not send
        self._wait(lambda: not self._apart, hurry)
        self._again.stop()
        self._wait(lambda: self._coroutine_runner.idle, hurry)
        last()
        self._coroutine_runner.end()
        self._thread_runner.end()
        ended(self._loops)
        if self._claims.limiter.wakeups is not None:
            self._claims.limiter.wakeups.waiters_end()

    def _wait(self, done: Callable[[], bool], hurry: SignalSafeEvent) -> None:
        """Waits until ``done``, or for the end of step 4, which a second signal brings nearer."""
        while not done():
            now = time.monotonic()
            if hurry.is_set():
                self._until = min(self._until, now + HURRY_S)
            if now >= self._until:
                return
            time.sleep(SLICE_S / 10)

    # ---- for whoever counts

    def note_call(self, lot: Lot, size: int, seconds: float) -> None:
        """Notes a call of a handler of batches. From any thread."""
        lot.room.ended(seconds)

    def note_ended(self, settlements: Iterable[tuple[Job, Settlement]]) -> None:
        """Notes jobs that are finished, whether or not their settlements reach the server. From one thread."""

    def note_answers(self, settled: Sequence[tuple[Job, Settlement]], answers: Mapping[str, str]) -> None:
        """Notes what became of settlements: by id, those that were not simply done. Not of those sent again, which may
        have reached the server before.
        """
        lost = [id for id, answer in answers.items() if answer == "lost"]
        if lost:
            what = "the lease of %s was lost before it could be settled: %s"
            self._tell(logging.WARNING, what, counted(len(lost), "task"), ", ".join(lost[:5]), extra={"task_ids": lost})
        dead = [id for id, answer in answers.items() if answer == "dead"]
        if dead:
            what = "%s failed in the last attempt and will not be tried again (dead): %s"
            self._tell(logging.ERROR, what, counted(len(dead), "task"), ", ".join(dead[:5]), extra={"task_ids": dead})

    def _tell(self, level: int, text: str, *words: object, extra: Mapping[str, object] | None = None) -> None:
        tell_to(level, text, *words, extra=extra, to=self.log)

    # ---- duties

    def _start(self, units: Sequence[Unit]) -> None:
        """Hands units that were just claimed to the runners."""
        if self._claims.left_out:
            # Their claim was in flight before.
            self._in_flight.give_back([unit for unit in units if self._unwanted(unit)])
            units = [unit for unit in units if unit.stage == "held"]
        functions = units
        if self._has_coroutines:
            coroutines = [unit for unit in units if unit.is_coroutine]
            if coroutines:
                self._coroutine_runner.take(coroutines)
                functions = [unit for unit in units if not unit.is_coroutine] if len(coroutines) < len(units) else []
        if functions:
            self._thread_runner.take(functions)

    def _settle(self) -> bool:
        again, settlements = bool(self._unsent), self._unsent or self._in_flight.settlements()
        if not settlements:
            return False
        if not again:
            self.note_ended(settlements)
        self._unsent = []
        if self._apart:
            settlements = self._not_apart(settlements)
        if not settlements:
            return True
        shards = len(self._claims.cache.topology.span())
        left, error = self._sent(settlements, self._claims.patience_s if shards > 1 else None, again=again)
        if left:
            silent = {job.delivery.shard for job, _ in left}
            if len(silent) == shards:
                # Until then the leases are extended. What this try has settled is "lost" in the next.
                self._unsent = left
                assert error is not None, "something is left"
                raise error
            with self._apart_lock:
                for each in left:
                    self._apart[each[0].delivery.shard].append(each)
            self._again.start()
            self._again.wake()
        return True

    def _not_apart(self, settlements: Sequence[tuple[Job, Settlement]]) -> list[tuple[Job, Settlement]]:
        """Those that are not of shards which have left others behind: they wait with these."""
        found = list[tuple[Job, Settlement]]()
        with self._apart_lock:
            for each in settlements:
                shard = each[0].delivery.shard
                self._apart.get(shard, found).append(each)
        return found

    def _settle_again(self) -> float | None:
        with self._apart_lock:
            tried = {shard: list(some) for shard, some in self._apart.items()}
        if not tried:
            return None
        left, error = self._sent([each for some in tried.values() for each in some], None, again=True)
        kept = defaultdict[int, list[tuple[Job, Settlement]]](list)
        for each in left:
            kept[each[0].delivery.shard].append(each)
        with self._apart_lock:
            for shard, some in tried.items():
                self._apart[shard][: len(some)] = kept[shard]
                if not self._apart[shard]:
                    del self._apart[shard]
        if error is not None and left:
            raise error
        return 0.0

    def _sent(
        self, settlements: Sequence[tuple[Job, Settlement]], within_s: float | None, *, again: bool
    ) -> tuple[list[tuple[Job, Settlement]], ShardqError | None]:
        """Sends settlements. Returns those that could not be sent and are to be sent again, and why."""
        left, error = list[tuple[Job, Settlement]](), None
        answers: Mapping[str, str] = {}
        try:
            topology = self._claims.cache.topology
            divided = by_shard((job.delivery, job.noted(settlement, topology)) for job, settlement in settlements)
            limit = self._left()
            answers = run(self._driver, settle(self._claims, divided), within_s if limit is None else limit)
        except ShardqError as exc:
            error = exc
            left = list(settlements)
            if isinstance(exc, SettleError):
                ids = {*exc.failed, *exc.unknown}
                left = [each for each in settlements if each[0].delivery.id in ids]
            if time.monotonic() >= self._until:
                what, count = "%s could not be sent; the tasks come back: %s", counted(len(left), "settlement")
                self._tell(logging.ERROR, what, count, exc, extra={"error": type(exc).__name__})
                left = []
        finally:
            # Also after an error that is not ours: the tasks come back when their leases, not extended, run out.
            kept = {id(job) for job, _ in left}
            self._in_flight.settled([job for job, _ in settlements if id(job) not in kept])
        if not again:
            self.note_answers(settlements, answers)
        return left, error

    def _left(self) -> float | None:
        """The time left for one trip in step 4 of stopping. None: as the driver says."""
        if self._until == math.inf:
            return None
        return max(SLICE_S, min(self._until - time.monotonic(), self._driver.settings.timeout))

    def _watch(self) -> bool:
        jobs = self._in_flight.watched(TICK_S, awake=bool(self._claims.left_out))
        if jobs is None:
            return False
        now = time.monotonic()
        self._end_overdue(jobs, now)
        self._leave_out(jobs)
        # A job that waits for a loop that owes an answer is begun in a moment, or given back with the others.
        self._in_flight.give_back(
            [unit for unit in self._in_flight.stale() if not (self._coroutine_runner.silent and unit.is_coroutine)]
        )
        lease_s = self._claims.lease_ms / 1000
        if now >= self._extend_at:
            self._extend_at = now + lease_s / 4
            self._extend([job for job in jobs if now - job.claimed_at > lease_s / 4], timeout=lease_s / 4)
        return True

    def _end_overdue(self, jobs: list[Job], now: float) -> None:
        for job in jobs:
            limit = job.handler.timeout
            if limit is None or job.stage != "running" or now - job.began_at < limit or job.lot is not None:
                continue
            if self._overrule(job, job.retry(f"timed out after {limit:g} s")):
                task, what = job.delivery, "task %s has timed out after %g s"
                fields: dict[str, object] = {"task_id": task.id, "topic": task.topic, "attempt": task.attempt}
                self._tell(logging.ERROR, what, task.id, limit, extra=fields | {"seconds": now - job.began_at})
        for lot in self._in_flight.lots():
            limit = lot.handler.timeout
            # The time of a call begins with it: a thread may be late to make the first one.
            if limit is None or lot.stage != "running" or not lot.called or now - lot.began_at < limit:
                continue
            # What waits for the next call of the lot has not timed out, and goes back.
            called = [job for job in lot.open() if job.stage == "running"]
            if self._overrule_lot(lot, retries(called, f"timed out after {limit:g} s")):
                what = "a batch of %s of topic %s has timed out after %g s"
                tasks, topic = counted(len(called), "task"), lot.first.topic
                extra = {"topic": topic, "tasks": len(called), "seconds": now - lot.began_at}
                self._tell(logging.ERROR, what, tasks, quoted_topic(topic), limit, extra=extra)

    def _overrule(self, job: Job, settlement: Settlement | None) -> bool:
        """Finishes a job over the head of its running handler. Returns False if that was quicker."""
        if job.lot is not None:
            return self._in_flight.finish(job, settlement)
        return self._over_its_head(job, lambda: self._in_flight.finish(job, settlement))

    def _overrule_lot(self, lot: Lot, settled: Sequence[tuple[Job, Settlement]]) -> bool:
        """Likewise for a lot."""
        return self._over_its_head(lot, lambda: self._in_flight.end_lot(lot, settled))

    def _over_its_head(self, unit: Unit, finish: Callable[[], bool]) -> bool:
        strand = unit.is_coroutine
        if not strand and unit.stage == "running":
            # Before it is finished: the function may return right after that.
            self._strays.add(unit)
        if not finish():
            if not strand:
                self._strays.discard(unit)
            return False
        if strand:
            self._coroutine_runner.cancel([unit], UNWIND_S)
        elif unit in self._strays.units:
            self._strays.say(unit)
        return True

    def _leave_out(self, jobs: list[Job]) -> None:
        """Claims the topics that can be handled now, and gives back held jobs of the others."""
        blocked, full = False, self._strays.full
        if self._has_coroutines:
            self._coroutine_runner.look()
            blocked = self._coroutine_runner.blocked
        was_blocked, self._blocked, self._full = self._blocked, blocked, full
        left_out = full | self._coroutine_topics if blocked else full
        self._claims.leave_out(left_out)
        if self._claims.left_out:
            self._in_flight.give_back([job for job in jobs if self._unwanted(job)])
        for topic in full:
            if self._once.new(f"full {topic}"):
                what = "topic %s is claimed no more until some of its handlers end that run on after their tasks: %s"
                self._tell(
                    logging.ERROR, f"{what} (said once)", quoted_topic(topic), self._strays, extra={"topic": topic}
                )
        if blocked and not was_blocked:
            at = self._coroutine_runner.at
            self._said_blocked = self._once.new(f"blocked {at}")
            if self._said_blocked:
                what = "the event loop does not answer, it is in %s; until it does nothing is claimed for coroutines"
                self._tell(logging.ERROR, f"{what} (said once)", at)
        elif was_blocked and not blocked and self._said_blocked:
            self._tell(logging.WARNING, "the event loop answers again")

    def _unwanted(self, unit: Unit) -> bool:
        """True if the unit can't be begun now, or must not be."""
        topic = unit.first.topic
        return topic in self._full or topic in self._claims.on_hold or (self._blocked and unit.is_coroutine)

    def _extend(self, jobs: list[Job], *, timeout: float) -> None:
        if not jobs:
            return
        held = per_shard(job.delivery for job in jobs)
        answers = run(self._driver, extend(self._claims, held, self._claims.lease_ms), timeout)
        lost = [job for job in jobs if job.delivery.id in answers and self._overrule(job, None)]
        if lost:
            what = "the lease of %s was lost while a handler ran; another worker may run it too"
            self._tell(
                logging.WARNING, what, counted(len(lost), "task"), extra={"task_ids": [job.delivery.id for job in lost]}
            )
        for lot in {job.lot: None for job in lost if job.lot is not None}:
            if not lot.open():  # nothing of it is ours any more
                self._overrule_lot(lot, ())
