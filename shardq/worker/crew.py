"""The running worker: everything between a claim and the settling of what was claimed.

Threads, each with one duty: *fetch* claims as many deliveries as the table wants, *settle* sends the verdicts in
batches, *watch* extends leases, ends what has timed out and gives back what was fetched too early. Functions run on
``hands`` (threads), coroutines on ``strands`` (a loop). They meet at the ``table`` only.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping

from shardq.calls.consume import Ack, Other
from shardq.consumer.operations import Claims, extended, settled
from shardq.consumer.sync import Consumer
from shardq.drivers.sync import Driver
from shardq.errors import ShardqError
from shardq.operation import run
from shardq.worker.base import Plan
from shardq.worker.hands import Hands
from shardq.worker.job import Job, Verdict
from shardq.worker.sign import Sign
from shardq.worker.strands import Strands
from shardq.worker.table import Table

log = logging.getLogger("shardq.worker")

WAIT_S = 30.0
"""Of one claim; stopping ends it sooner."""

TICK_S = 0.05
"""How exactly timeouts are kept."""

YIELD_S = 0.00005
"""After tasks for which hands were at rest: else the next claim would be made first, while the hands wait for Python's
lock. From the claim's answer to the handler's first line: 0.23 ms, and 0.37 without."""

BACKOFF_S = 0.5
"""After an error of the server."""

END_S = 5.0
"""For the last verdicts, and for threads to end."""


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
        self._hands = Hands(self._table, plan.hooks, concurrency=plan.concurrency)
        self._strands = Strands(self._table, plan.hooks, concurrency=plan.concurrency, loop=loop)
        self._stopping = threading.Event()
        self._extend_at = 0.0
        self._threads = [
            threading.Thread(target=self._until_stopped, args=(duty,), name=f"shardq-{duty.__name__[1:]}", daemon=True)
            for duty in (self._fetch, self._settle, self._watch)
        ]

    def __repr__(self) -> str:
        return f"<Crew of {list(self._handlers)}: {self._table}>"

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, grace: float, hurry: Sign) -> None:
        """Claims no more, lets handlers finish for ``grace`` seconds or until ``hurry``, gives back the rest."""
        self._stopping.set()
        self._table.stop_fetching()
        self._consumer.close()
        fetch, *others = self._threads
        fetch.join()
        self._give_back(self._table.emptied())
        until = time.monotonic() + grace
        while not hurry.is_set() and time.monotonic() < until and not self._table.wait_quiet(time.monotonic() + 0.05):
            pass
        rest = self._table.unfinished()
        if rest:
            log.warning("giving back %d tasks whose handlers have not finished", len(rest))
            self._give_back(rest)
            self._strands.cancel(rest)
        self._table.end()
        for thread in others:
            thread.join(END_S)
        self._strands.close(END_S)
        self._hands.join(0.0 if rest else END_S)

    def _give_back(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._table.judge(job, job.back())

    def _until_stopped(self, duty: Callable[[], bool]) -> None:
        """Repeats a duty until it answers that it is over. An error is said once, not once a try."""
        failing = False
        while True:
            try:
                if not duty():
                    return
            except Exception as exc:
                if not failing:
                    log.error(
                        "%s fails, trying on: %s", duty.__name__[1:], exc, exc_info=not isinstance(exc, ShardqError)
                    )
                failing = True
                self._stopping.wait(BACKOFF_S)
            else:
                if failing:
                    log.warning("%s works again", duty.__name__[1:])
                failing = False

    # ---- duties

    def _fetch(self) -> bool:
        want = self._table.wanted()
        if not want:
            return False
        deliveries = self._consumer.claim(want, wait=WAIT_S)
        jobs = [Job(delivery, self._handlers[delivery.topic]) for delivery in deliveries]
        self._table.put(jobs)
        strands = [job for job in jobs if job.handler.is_coroutine(job.delivery)]
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
        again = False
        answers: Mapping[str, str] = {}
        while True:
            try:
                answers = run(self._driver, settled(self._claims, by_shard))
                break
            except ShardqError as exc:
                if self._stopping.is_set():
                    log.error("%d verdicts could not be sent; their tasks come back: %s", len(verdicts), exc)
                    break
                # until then the leases are extended; what was done in this try is "lost" in the next
                log.error("%d verdicts could not be sent, trying on: %s", len(verdicts), exc)
                again = True
                self._stopping.wait(BACKOFF_S)
        self._table.settled([job for job, _ in verdicts])
        lost = [id for id, answer in answers.items() if answer == "lost"] if not again else []
        if lost:
            log.warning("the lease of %d tasks was lost before they were settled: %s", len(lost), ", ".join(lost[:5]))
        dead = [id for id, answer in answers.items() if answer == "dead"]
        if dead:
            log.error("%d tasks failed in their last attempt and are dead: %s", len(dead), ", ".join(dead[:5]))

    def _watch(self) -> bool:
        jobs = self._table.watched(TICK_S)
        if jobs is None:
            return False
        now = time.monotonic()
        self._end_overdue(jobs, now)
        self._give_back(self._table.stale())
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
            strand = job.handler.is_coroutine(job.delivery)
            if not strand:
                # before the verdict: the function may return right after it
                self._hands.give_up(job)
            if not self._table.judge(job, job.retry(None, f"timed out after {limit:g} s")):
                self._hands.keep(job)
                continue
            log.error("task %s has timed out after %g s", job.delivery.id, limit)
            if strand:
                self._strands.cancel([job])

    def _extend(self, jobs: list[Job], *, timeout: float) -> None:
        if not jobs:
            return
        by_shard: dict[int, list[Ack]] = {}
        for job in jobs:
            by_shard.setdefault(job.delivery.shard, []).append(job.ack)
        answers = run(self._driver, extended(self._claims, by_shard, self._claims.lease_ms), timeout)
        lost = [job for job in jobs if job.delivery.id in answers and self._table.judge(job, None)]
        if lost:
            log.warning("the lease of %d tasks was lost while they ran; they run elsewhere too", len(lost))
            self._strands.cancel([job for job in lost if job.handler.is_coroutine(job.delivery)])
