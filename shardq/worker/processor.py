"""The running worker: everything between a claim and the settling of what was claimed.

Three threads: *fetch* claims as many deliveries as ``in_flight`` wants, *settle* sends settlements in batches, *watch*
extends leases, ends what has timed out and gives back what was fetched too early. ``runners`` run functions and
coroutines. All of them meet in ``in_flight`` only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import wait

from shardq.core.calls import node_info
from shardq.core.consumer.claims import Claims
from shardq.core.consumer.settling import Settlement, by_shard, extend, per_shard, settle
from shardq.core.consumer.sync import Consumer
from shardq.core.drivers.sync import Driver
from shardq.core.locks import SignalSafeEvent
from shardq.core.model.ids import quoted_topic
from shardq.core.model.printable import counted
from shardq.core.model.task import Delivery
from shardq.core.operation import run
from shardq.core.threads import Loop, ended
from shardq.errors import ShardqError
from shardq.worker.handlers import Plan
from shardq.worker.in_flight import InFlight, Job, Strays
from shardq.worker.logs import Once, log, tell
from shardq.worker.report import Reporter, Tally
from shardq.worker.runners import CoroutineRunner, ThreadRunner

WAIT_S = 30.0
"""The wait of one claim; stopping ends it sooner."""

TICK_S = 0.05
"""The precision of timeouts."""

YIELD_S = 0.00005
"""A pause after jobs that idle threads take. Otherwise the next claim would be made first, while those threads wait for
Python's lock. From the claim's answer to the handler's first line it takes 0.23 ms, and 0.37 without.
"""

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


class Processor:
    """Runs the handlers of one worker. Started once and stopped once."""

    def __init__(
        self, driver: Driver, claims: Claims, consumer: Consumer, plan: Plan, *, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self._driver = driver
        self._claims = claims
        self._consumer = consumer
        self._handlers = plan.handlers
        self._in_flight = InFlight(plan.concurrency)
        self._strays = Strays(plan.concurrency)
        self._thread_runner = ThreadRunner(self._in_flight, plan.hooks, self._strays, concurrency=plan.concurrency)
        self._coroutine_runner = CoroutineRunner(
            self._in_flight, plan.hooks, self._strays, concurrency=plan.concurrency, loop=loop
        )
        self.tally: Tally = Tally(
            list(plan.handlers),
            plan.concurrency,
            tasks=plan.tasks,
            running=self._in_flight.unfinished,
            problems=lambda: self.problems,
        )
        self._reporter = Reporter(driver, claims.cache, claims.name, self.tally.report)
        self._stopping = threading.Event()
        self._until = math.inf
        """The time at which unsent settlements are given up: known once the grace is over."""
        self._unsent: list[tuple[Job, Settlement]] = []
        """Settlements that the last step could not send."""
        self._once = Once()
        self._coroutine_topics = frozenset(
            topic for topic, handler in plan.handlers.items() if handler.has_coroutines()
        )
        self._blocked = False
        """True if the loop was blocked at the last check."""
        self._full: frozenset[str] = frozenset()
        """The topics that had too many strays at the last check."""
        self._said_blocked = False
        self._began = False
        self._extend_at = 0.0
        self._loops = [
            self._loop("fetch", self._fetch),
            self._loop("settle", self._settle),
            self._loop("watch", self._watch),
        ]

    @staticmethod
    def _loop(name: str, duty: Callable[[], bool]) -> Loop:
        """A thread that repeats a duty until that returns False."""

        def step() -> float:
            if not duty():
                loop.stop()
            return 0.0

        fails, works = f"{name} fails, trying again", f"{name} works again"
        loop = Loop(f"shardq-{name}", step, log, fails=fails, works=works, longest_pause_s=BACKOFF_S)
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
        for loop in self._loops:
            if loop.fault and not (answered and loop.fault_of_server):
                yield f"{loop.name.removeprefix('shardq-')} fails, see its log"
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

    def start(self) -> None:
        for loop in self._loops:
            loop.start()
        self._reporter.start()
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
        self._consumer.close()
        self._in_flight.give_back(self._in_flight.emptied())
        until = time.monotonic() + grace
        while not hurry.is_set() and time.monotonic() < until:
            if self._in_flight.wait_quiet(min(until, time.monotonic() + SLICE_S)):
                break
        self._until = time.monotonic() + END_S
        rest = self._in_flight.unfinished()
        if rest:
            tell(logging.WARNING, "giving back %s: the handlers have not finished", counted(len(rest), "task"))
            for job in rest:
                self._in_flight.finish(job, job.back())
            self._coroutine_runner.cancel(rest, END_S)
        fetch, *others = self._loops
        # First, as it may still claim something.
        self._wait(lambda: not fetch.is_alive, hurry)
        self._in_flight.end()
        self._wait(lambda: not any(loop.is_alive for loop in others), hurry)
        for loop in others:
            loop.wake()  # one that waits for its next try gives up what it could not send
        self._wait(lambda: self._coroutine_runner.idle, hurry)
        last()
        self._coroutine_runner.end()
        self._thread_runner.end()
        ended(self._loops)
        if self._claims.limiter.wakeups is not None:
            self._claims.limiter.wakeups.waiters_end()
        self._reporter.stop()

    def _wait(self, done: Callable[[], bool], hurry: SignalSafeEvent) -> None:
        """Waits until ``done``, or for the end of step 4, which a second signal brings nearer."""
        while not done():
            now = time.monotonic()
            if hurry.is_set():
                self._until = min(self._until, now + HURRY_S)
            if now >= self._until:
                return
            time.sleep(SLICE_S / 10)

    # ---- duties

    def _fetch(self) -> bool:
        want = self._in_flight.wanted()
        if not want:
            return False
        deliveries = self._consumer.claim(want, wait=WAIT_S)
        now, handlers = time.monotonic(), self._handlers
        jobs = [
            Job(delivery, handler.of(delivery) if (handler := handlers[delivery.topic]).named else handler, now)
            for delivery in deliveries
        ]
        if not self._in_flight.put(jobs):
            self._in_flight.give_back(jobs)
            return False
        if self._claims.left_out:
            # This claim was in flight before.
            self._in_flight.give_back([job for job in jobs if self._unwanted(job)])
            jobs = [job for job in jobs if job.stage == "held"]
        functions = jobs
        if self._coroutine_topics:
            coroutines = [job for job in jobs if job.is_coroutine]
            if coroutines:
                self._coroutine_runner.take(coroutines)
                functions = [job for job in jobs if not job.is_coroutine] if len(coroutines) < len(jobs) else []
        if functions:
            self._thread_runner.take(functions)
        if 0 < len(jobs) < want:
            time.sleep(YIELD_S)
        return True

    def _settle(self) -> bool:
        again, settlements = bool(self._unsent), self._unsent or self._in_flight.settlements()
        if not settlements:
            return False
        if not again:
            self.tally.count(settlements)
        self._unsent = []
        answers: Mapping[str, str] = {}
        try:
            divided = by_shard(
                (job.delivery, settlement if isinstance(settlement, Delivery) else job.noted(settlement))
                for job, settlement in settlements
            )
            answers = run(self._driver, settle(self._claims, divided), self._left())
        except ShardqError as exc:
            if time.monotonic() < self._until:
                # Until then the leases are extended. What this try has settled is "lost" in the next.
                self._unsent = settlements
                raise
            what = "%s could not be sent; the tasks come back: %s"
            tell(logging.ERROR, what, counted(len(settlements), "settlement"), exc, extra={"error": type(exc).__name__})
        finally:
            # Also after an error that is not ours: the tasks come back when their leases, not extended, run out.
            if not self._unsent:
                self._in_flight.settled([job for job, _ in settlements])
        lost = [id for id, answer in answers.items() if answer == "lost"] if not again else []
        if lost:
            what = "the lease of %s was lost before it could be settled: %s"
            tell(logging.WARNING, what, counted(len(lost), "task"), ", ".join(lost[:5]), extra={"task_ids": lost})
        dead = [id for id, answer in answers.items() if answer == "dead"]
        if dead:
            what = "%s failed in the last attempt and will not be tried again (dead): %s"
            tell(logging.ERROR, what, counted(len(dead), "task"), ", ".join(dead[:5]), extra={"task_ids": dead})
        return True

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
            [job for job in self._in_flight.stale() if not (self._coroutine_runner.silent and job.is_coroutine)]
        )
        lease_s = self._claims.lease_ms / 1000
        if now >= self._extend_at:
            self._extend_at = now + lease_s / 4
            self._extend([job for job in jobs if now - job.claimed_at > lease_s / 4], timeout=lease_s / 4)
        return True

    def _end_overdue(self, jobs: list[Job], now: float) -> None:
        for job in jobs:
            limit = job.handler.timeout
            if limit is None or job.stage != "running" or now - job.began_at < limit:
                continue
            if self._overrule(job, job.retry(f"timed out after {limit:g} s")):
                task, what = job.delivery, "task %s has timed out after %g s"
                fields: dict[str, object] = {"task_id": task.id, "topic": task.topic, "attempt": task.attempt}
                tell(logging.ERROR, what, task.id, limit, extra=fields | {"seconds": now - job.began_at})

    def _overrule(self, job: Job, settlement: Settlement | None) -> bool:
        """Finishes a job over the head of its running handler. Returns False if that was quicker."""
        strand = job.is_coroutine
        if not strand and job.stage == "running":
            # Before the job is finished: the function may return right after that.
            self._strays.add(job)
        if not self._in_flight.finish(job, settlement):
            if not strand:
                self._strays.discard(job)
            return False
        if strand:
            self._coroutine_runner.cancel([job], UNWIND_S)
        elif job in self._strays.jobs:
            self._strays.say(job)
        return True

    def _leave_out(self, jobs: list[Job]) -> None:
        """Claims the topics that can be handled now, and gives back held jobs of the others."""
        blocked, full = False, self._strays.full
        if self._coroutine_topics:
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
                tell(logging.ERROR, f"{what} (said once)", quoted_topic(topic), self._strays, extra={"topic": topic})
        if blocked and not was_blocked:
            at = self._coroutine_runner.at
            self._said_blocked = self._once.new(f"blocked {at}")
            if self._said_blocked:
                what = "the event loop does not answer, it is in %s; until it does nothing is claimed for coroutines"
                tell(logging.ERROR, f"{what} (said once)", at)
        elif was_blocked and not blocked and self._said_blocked:
            tell(logging.WARNING, "the event loop answers again")

    def _unwanted(self, job: Job) -> bool:
        """True if the job can't be begun now, or must not be."""
        topic = job.delivery.topic
        return topic in self._full or topic in self._claims.on_hold or (self._blocked and job.is_coroutine)

    def _extend(self, jobs: list[Job], *, timeout: float) -> None:
        if not jobs:
            return
        held = per_shard(job.delivery for job in jobs)
        answers = run(self._driver, extend(self._claims, held, self._claims.lease_ms), timeout)
        lost = [job for job in jobs if job.delivery.id in answers and self._overrule(job, None)]
        if lost:
            what = "the lease of %s was lost while a handler ran; another worker may run it too"
            tell(
                logging.WARNING, what, counted(len(lost), "task"), extra={"task_ids": [job.delivery.id for job in lost]}
            )
