"""A steady flow through an engine, while a test breaks things: pushers and consumers in threads, with accounts.

Any error that reaches a pusher or a consumer fails the test: what waiting can solve must not get that far.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from shardq import Engine, LeaseLost, Task
from shardq.core.drivers.retry import FIRST_PAUSE_S
from tests.support.waiting import wait_until

LONG_S = FIRST_PAUSE_S / 2
"""A push that took less time was not sent twice: there is a pause before the resend."""

LEASE_S = 2.0
"""The time for which a claim whose answer was lost holds its tasks."""

END_S = 60.0
"""The time after the last push until all is done: some leases, on a busy machine."""


class Flow:
    """``pushed`` and ``done`` grow while it runs."""

    def __init__(self, engine: Engine, *, spread_s: float) -> None:
        self.pushed: set[str] = set()
        self.done: set[str] = set()
        self.again: set[str] = set()
        """Given out after their acknowledgement was answered."""
        self.resent: set[str] = set()
        """Pushed without an id of the caller's, by a call that may have lost its answer and sent the task again."""
        self.late: set[str] = set()
        """Acknowledged when the lease may have run out. If the answer to that was lost, "no longer held" counts as
        done, and it may have been given back to its list instead.
        """
        self._engine = engine
        self._spread_s = spread_s
        self._pushing = threading.Event()
        self._consuming = threading.Event()
        self._lock = threading.Lock()
        self._runs: list[Future[None]] = []

    def check(self) -> None:
        """Raises the error of a pusher or consumer, if there is one."""
        for run in self._runs:
            if run.done():
                run.result()

    def push_one_by_one(self) -> None:
        while not self._pushing.is_set():
            began = time.monotonic()
            id = self._engine.push("one", delay=random.uniform(0, self._spread_s))
            with self._lock:
                self.pushed.add(id)
                if time.monotonic() - began > LONG_S:
                    self.resent.add(id)

    def push_many(self) -> None:
        rounds = 0
        while not self._pushing.is_set():
            rounds += 1
            ids = self._engine.push_many(
                [
                    Task(n, delay=random.uniform(0, self._spread_s), id=f"mine-{rounds}-{n}", dedup=600)
                    for n in range(200)
                ],
            )
            with self._lock:
                self.pushed.update(ids)

    def consume(self) -> None:
        consumer = self._engine.consumer(lease=LEASE_S)
        while not self._consuming.is_set():
            began = time.monotonic()
            deliveries = consumer.claim(200, wait=0.05)
            ids = {delivery.id for delivery in deliveries}
            with self._lock:
                self.again |= ids & self.done
            try:
                consumer.ack(deliveries)
            except LeaseLost as exc:
                # held up for longer than the lease: somebody else has them now
                ids -= set(exc.ids)
            with self._lock:
                self.done |= ids
                if time.monotonic() - began > LEASE_S:
                    self.late |= ids

    def end(self) -> None:
        """Ends the pushes; returns when everything pushed is done, also deliveries given out twice."""
        self._pushing.set()

        def all_done() -> bool:
            self.check()
            return all(run.done() for run in self._runs[:2]) and self.done >= self.pushed and _empty(self._engine)

        wait_until(all_done, "all that was pushed is done", timeout=END_S)
        self._consuming.set()


@contextlib.contextmanager
def flowing(engine: Engine, *, spread_s: float = 0.5) -> Iterator[Flow]:
    """Two pushers and a consumer run until the end of the block; then everything is accounted for."""
    flow = Flow(engine, spread_s=spread_s)
    with ThreadPoolExecutor(3) as threads:
        flow._runs = [threads.submit(run) for run in (flow.push_one_by_one, flow.push_many, flow.consume)]
        try:
            yield flow
            flow.end()
        finally:
            flow._pushing.set()
            flow._consuming.set()
    flow.check()
    # The exceptions there are: a push without id= whose answer was lost, and whose task was done before the resend; and
    # an acknowledgement whose answer was lost, and whose lease ran out before the resend.
    assert flow.again <= flow.resent | flow.late
    assert flow.done == flow.pushed
    assert _empty(engine)


def _empty(engine: Engine) -> bool:
    stats = engine.stats()
    assert stats.dead == 0
    seen = not any(shard.error for shard in stats.shards)
    return seen and (stats.scheduled, stats.ready, stats.leased) == (0, 0, 0)
