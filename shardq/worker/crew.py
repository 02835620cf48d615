"""The running worker: everything between a claim and the settling of what was claimed.

Threads, each with one duty: *fetch* claims as many deliveries as the table wants, *settle* sends the verdicts in
batches, *watch* extends leases, ends what has timed out and gives back what was fetched too early. Functions run on
``hands`` (threads), coroutines on ``strands`` (a loop). They meet at the ``table`` only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from shardq.calls.consume import Ack, Other
from shardq.consumer.operations import Claims, extended, settled
from shardq.consumer.sync import Consumer
from shardq.drivers.sync import Driver
from shardq.errors import ShardqError
from shardq.operation import run
from shardq.threads import ended
from shardq.worker.base import Plan
from shardq.worker.hands import Hands
from shardq.worker.job import Job, Verdict
from shardq.worker.logs import Once, tell
from shardq.worker.sign import Sign
from shardq.worker.strands import Strands
from shardq.worker.strays import Strays
from shardq.worker.table import Table

WAIT_S = 30.0
"""Of one claim; stopping ends it sooner."""

TICK_S = 0.05
"""How exactly timeouts are kept."""

YIELD_S = 0.00005
"""After tasks for which hands were at rest: else the next claim would be made first, while the hands wait for Python's
lock. From the claim's answer to the handler's first line: 0.23 ms, and 0.37 without."""

UNWIND_S = 0.25
"""For a coroutine that is cancelled to end, until its place is another's; less than what is held waits for a place."""

BACKOFF_S = 0.5
"""After an error of the server."""

END_S = 3.0
"""After the grace, in all: for the last verdicts, a claim under way, and coroutines that are cancelled. A server that
answers takes some milliseconds of it."""

HURRY_S = 1.0
"""The same after a second signal."""

SLICE_S = 0.05
"""The length of waits, between which a second signal is seen."""


class Crew:
    """Started once and stopped once."""

    def __init__(
        self,
        driver: Driver,
        claims: Claims,
        consumer: Consumer,
        plan: Plan,
        *,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._driver = driver
        self._claims = claims
        self._consumer = consumer
        self._handlers = plan.handlers
        self._table = Table(plan.concurrency)
        self._strays = Strays(plan.concurrency)
        self._hands = Hands(self._table, plan.hooks, self._strays, concurrency=plan.concurrency)
        self._strands = Strands(self._table, plan.hooks, self._strays, concurrency=plan.concurrency, loop=loop)
        self._stopping = threading.Event()
        self._until = math.inf
        """When whatever has not been sent is given up: known once the grace is over."""
        self._failing: set[str] = set()
        self._once = Once()
        self._coroutine_topics = frozenset(
            topic for topic, handler in plan.handlers.items() if handler.has_coroutines()
        )
        self._blocked = False
        """Whether the loop was, at the last look."""
        self._full: frozenset[str] = frozenset()
        """Topics that had too many strays, at the last look."""
        self._said_blocked = False
        self._began = False
        self._extend_at = 0.0
        self._threads = [
            threading.Thread(target=self._until_stopped, args=(duty,), name=f"shardq-{duty.__name__[1:]}", daemon=True)
            for duty in (self._fetch, self._settle, self._watch)
        ]

    def __repr__(self) -> str:
        return f"<Crew of {list(self._handlers)}: {self._table}>"

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps it from its work, a sentence each, before it is stopped."""
        return tuple(self._problems()) if self._began and not self._stopping.is_set() else ()

    def _problems(self) -> Iterator[str]:
        for thread in self._threads:
            if not thread.is_alive():
                yield f"its thread {thread.name} has ended"
        for name in sorted(self._failing):
            yield f"{name} fails, see its log"
        if not self._strands.healthy:
            yield "the thread of its event loop has ended"
        if self._blocked:
            yield (
                f"its event loop has not answered for {self._strands.blocked_s:,.1f} s, it is in {self._strands.at}; "
                "meanwhile nothing is claimed for coroutine functions"
            )
        for topic in sorted(self._full):
            yield (
                f"topic {topic!r} is not claimed: too many of its handlers run on after their tasks were ended "
                f"({self._strays})"
            )

    @property
    def strays(self) -> Mapping[str, int]:
        """Handlers that run on after their tasks were ended, by name."""
        return self._strays.names

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self._began = True

    def stop(self, grace: float, hurry: Sign) -> None:
        """Ends in this order, each step for all tasks together:

        1. Claims no more, and gives back what is not begun.
        2. Lets handlers finish, for ``grace`` seconds or until ``hurry``; their verdicts are sent as they come.
        3. Gives back the tasks of those that run on. Coroutines are cancelled; a function's thread is left behind.
        4. Sends what is not sent, for ``END_S`` at most, or ``HURRY_S`` after ``hurry``. Tasks whose verdict can't be
           sent in that time come back when their lease runs out.
        """
        self._stopping.set()
        self._table.stop_fetching()
        self._consumer.close()
        self._give_back(self._table.emptied())
        until = time.monotonic() + grace
        while not hurry.is_set() and time.monotonic() < until:
            if self._table.wait_quiet(min(until, time.monotonic() + SLICE_S)):
                break
        self._until = time.monotonic() + END_S
        rest = self._table.unfinished()
        if rest:
            tell(logging.WARNING, "giving back %d tasks whose handlers have not finished", len(rest))
            self._give_back(rest)
            self._strands.cancel(rest, END_S)
        fetch, *others = self._threads
        # first, as it may still claim something
        self._wait(lambda: not fetch.is_alive(), hurry)
        self._table.end()
        self._wait(lambda: not any(thread.is_alive() for thread in others), hurry)
        self._wait(lambda: self._strands.idle, hurry)
        self._strands.end()
        self._hands.end()
        # a system without threads to spare may have started some of them only
        ended(thread for thread in self._threads if thread.ident is not None)

    def _wait(self, done: Callable[[], bool], hurry: Sign) -> None:
        """Waits until it is done, or for the end of step 4, which a second signal brings nearer."""
        while not done():
            now = time.monotonic()
            if hurry.is_set():
                self._until = min(self._until, now + HURRY_S)
            if now >= self._until:
                return
            time.sleep(SLICE_S / 10)

    def _give_back(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._table.judge(job, job.back())

    def _until_stopped(self, duty: Callable[[], bool]) -> None:
        """Repeats a duty until it answers that it is over. An error is said once, not once a try."""
        name = duty.__name__[1:]
        while True:
            try:
                if not duty():
                    return
            except BaseException as exc:  # noqa: BLE001  a codec of the user's own may raise SystemExit here
                if name not in self._failing:
                    self._failing.add(name)
                    known = isinstance(exc, ShardqError)
                    tell(logging.ERROR, "%s fails, trying on: %s", name, exc, exc=None if known else exc)
                self._stopping.wait(BACKOFF_S)
            else:
                self._works(name)

    def _works(self, name: str) -> None:
        if name in self._failing:
            self._failing.discard(name)
            tell(logging.WARNING, "%s works again", name)

    # ---- duties

    def _fetch(self) -> bool:
        want = self._table.wanted()
        if not want:
            return False
        deliveries = self._consumer.claim(want, wait=WAIT_S)
        jobs = [Job(delivery, self._handlers[delivery.topic]) for delivery in deliveries]
        if not self._table.put(jobs):
            self._give_back(jobs)
            return False
        if self._claims.left_out:
            # this claim was under way before
            self._give_back([job for job in jobs if self._unwanted(job)])
            jobs = [job for job in jobs if job.stage == "held"]
        strands = [job for job in jobs if job.is_coroutine]
        if strands:
            self._strands.take(strands)
        if len(strands) < len(jobs):
            self._hands.take([job for job in jobs if job not in strands] if strands else jobs)
        if 0 < len(jobs) < want:
            time.sleep(YIELD_S)
        return True

    def _settle(self) -> bool:
        verdicts = self._table.verdicts()
        if not verdicts:
            return False
        by_shard: dict[int, tuple[list[Ack], list[Other]]] = {}
        for job, verdict in verdicts:
            acks, others = by_shard.setdefault(job.delivery.shard, ([], []))
            if isinstance(verdict, Ack):
                acks.append(verdict)
            else:
                others.append(verdict)
        self._send(verdicts, by_shard)
        return True

    def _send(self, verdicts: list[tuple[Job, Verdict]], by_shard: dict[int, tuple[list[Ack], list[Other]]]) -> None:
        answers: Mapping[str, str] = {}
        count, again = len(verdicts), False
        try:
            while True:
                try:
                    answers = run(self._driver, settled(self._claims, by_shard), self._left())
                    self._works("settle")
                    break
                except ShardqError as exc:
                    if time.monotonic() >= self._until:
                        tell(logging.ERROR, "%d verdicts could not be sent; their tasks come back: %s", count, exc)
                        break
                    # until then the leases are extended; what was done in this try is "lost" in the next
                    tell(logging.ERROR, "%d verdicts could not be sent, trying on: %s", count, exc)
                    again = True
                    self._failing.add("settle")
                    if self._stopping.wait(BACKOFF_S):
                        time.sleep(SLICE_S)
        finally:
            # after an error that is none of ours, too: their tasks come back when their leases, not extended, run out
            self._table.settled([job for job, _ in verdicts])
        lost = [id for id, answer in answers.items() if answer == "lost"] if not again else []
        if lost:
            what = "the lease of %d tasks was lost before they were settled: %s"
            tell(logging.WARNING, what, len(lost), ", ".join(lost[:5]))
        dead = [id for id, answer in answers.items() if answer == "dead"]
        if dead:
            what = "%d tasks failed in their last attempt and are dead: %s"
            tell(logging.ERROR, what, len(dead), ", ".join(dead[:5]))

    def _left(self) -> float | None:
        """The time left for one trip in step 4 of stopping. None: as the driver says."""
        if self._until == math.inf:
            return None
        return max(SLICE_S, min(self._until - time.monotonic(), self._driver.settings.timeout))

    def _watch(self) -> bool:
        jobs = self._table.watched(TICK_S, awake=bool(self._claims.left_out))
        if jobs is None:
            return False
        now = time.monotonic()
        self._end_overdue(jobs, now)
        self._leave_out(jobs)
        # what waits for a loop that owes an answer is begun in a moment, or given back with all that does
        self._give_back([job for job in self._table.stale() if not (self._strands.silent and job.is_coroutine)])
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
            if self._overrule(job, job.retry(None, f"timed out after {limit:g} s")):
                tell(logging.ERROR, "task %s has timed out after %g s", job.delivery.id, limit)

    def _overrule(self, job: Job, verdict: Verdict | None) -> bool:
        """Gives a verdict over the head of a handler that runs. False: it was quicker."""
        strand = job.is_coroutine
        if not strand and job.stage == "running":
            # before the verdict: the function may return right after it
            self._hands.give_up(job)
        if not self._table.judge(job, verdict):
            if not strand:
                self._hands.keep(job)
            return False
        if strand:
            self._strands.cancel([job], UNWIND_S)
        elif job in self._strays.jobs:
            self._strays.say(job)
        return True

    def _leave_out(self, jobs: list[Job]) -> None:
        """Claims what can be handled now, and gives back what can't."""
        blocked, full = False, self._strays.full
        if self._coroutine_topics:
            self._strands.look()
            blocked = self._strands.blocked
        was_blocked, self._blocked, self._full = self._blocked, blocked, full
        left_out = full | self._coroutine_topics if blocked else full
        if left_out != self._claims.left_out:
            self._claims.leave_out(left_out)
        if left_out:
            self._give_back([job for job in jobs if job.stage == "held" and self._unwanted(job)])
        for topic in full:
            if self._once.new(f"full {topic}"):
                what = "topic %r is claimed no more until some of its handlers end that run on after their tasks: %s"
                tell(logging.ERROR, f"{what} (said once)", topic, self._strays)
        if blocked and not was_blocked:
            at = self._strands.at
            self._said_blocked = self._once.new(f"blocked {at}")
            if self._said_blocked:
                what = "the event loop does not answer, it is in %s; until it does nothing is claimed for coroutines"
                tell(logging.ERROR, f"{what} (said once)", at)
        elif was_blocked and not blocked and self._said_blocked:
            tell(logging.WARNING, "the event loop answers again")

    def _unwanted(self, job: Job) -> bool:
        """True if it can't be begun now, or must not."""
        return job.delivery.topic in self._full or (self._blocked and job.is_coroutine)

    def _extend(self, jobs: list[Job], *, timeout: float) -> None:
        if not jobs:
            return
        by_shard: dict[int, list[Ack]] = {}
        for job in jobs:
            by_shard.setdefault(job.delivery.shard, []).append(job.ack)
        answers = run(self._driver, extended(self._claims, by_shard, self._claims.lease_ms), timeout)
        lost = [job for job in jobs if job.delivery.id in answers and self._overrule(job, None)]
        if lost:
            tell(logging.WARNING, "the lease of %d tasks was lost while they ran; they run elsewhere too", len(lost))
