"""The ledger of bulk actions: one that is killed in the middle leaves every task as it was, or dealt with, and a second
one deals with the rest. Two processes dispatch, and a consumer takes what becomes ready all the time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shardq import Engine, Task
from shardq.features.listing.bulk import PAGE
from tests.support.listed import listed
from tests.support.states import FAR_S, claim, counted
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = [pytest.mark.slow, pytest.mark.ledger]

PAGES = 3
"""The pages after which it is killed, in the middle of the next one."""


@contextmanager
def disturbed(engine: Engine, url: str) -> Iterator[Counter[str]]:
    """Two processes dispatch, and a thread takes and acks what is ready: the ids it has had are in the counter."""
    taken = Counter[str]()
    consumer, end = engine.consumer(lease=600), threading.Event()

    def take() -> None:
        while not end.is_set():
            deliveries = consumer.claim(200, wait=0.1)
            consumer.ack(deliveries)
            taken.update(delivery.id for delivery in deliveries)

    shards = engine.topology.shards
    with (
        Worker("tests.support.dispatching", url, engine.name, shards) as one,
        Worker("tests.support.dispatching", url, engine.name, shards) as two,
    ):
        assert one.said()
        assert two.said()
        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield taken
        finally:
            end.set()
            thread.join()


def killed_in_the_middle(url: str, name: str, verb: str) -> int:
    """Starts a bulk action, and kills it. Returns the tasks that it had dealt with by the last page that was whole."""
    with Worker("tests.support.bulk_action", url, name, verb) as bulk:
        for _ in range(PAGES - 1):
            assert bulk.said()
            bulk.tell()
        done = int(bulk.said())
        bulk.tell()
        bulk.kill()
    return done


@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_cancelling_all_is_killed_and_repeated(url: str, name: str) -> None:
    with Engine(url, name=name, shards=8) as engine, disturbed(engine, url) as taken:
        soon = engine.push_many([Task(n, delay=0.2, window=4.0) for n in range(2000)])
        far = engine.push_many([Task(n, delay=FAR_S) for n in range(6 * PAGE)])
        done = killed_in_the_middle(url, name, "cancel")
        left = {task.id for task in listed(engine, state="scheduled", due=(None, None), limit=1000)}
        assert left < {*soon, *far}
        assert len(left & {*far}) >= 6 * PAGE - done - PAGE, "no page but those that were said, and one more"
        result = engine.cancel_all(everything=True)
        assert result.done >= len(left & {*far}) > 0
        stats = counted(engine)
        wait_until(lambda: counted(engine).leased == 0, "what was taken is acked")
    assert (stats.scheduled, stats.ready, stats.dead) == (0, 0, 0)
    # taken once, or cancelled and never taken: nothing is left, and nothing comes back
    assert set(taken) <= {*soon}
    assert set(taken.values()) <= {1}
    assert done + result.done + len(taken) <= len(soon) + len(far) <= done + PAGE + result.done + len(taken)


@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_requeueing_is_killed_and_repeated(url: str, name: str) -> None:
    with Engine(url, name=name, shards=8) as engine:
        engine.start()
        pushed = {*engine.push_many([Task(n) for n in range(6 * PAGE)])}
        consumer = engine.consumer(lease=600)
        consumer.bury(claim(consumer, len(pushed)), "of no use")
        engine.stop()
        with disturbed(engine, url) as taken:
            done = killed_in_the_middle(url, name, "requeue")
            dead = {task.id for task in listed(engine, state="dead", limit=1000)}
            assert done <= len(pushed) - len(dead) <= done + PAGE
            wait_until(lambda: len(taken) == len(pushed) - len(dead), "what was requeued is taken", timeout=60)
            assert set(taken) == pushed - dead
            result = engine.requeue_all(everything=True)
            assert (result.done, result.matched) == (len(dead), len(dead))
            wait_until(lambda: len(taken) == len(pushed), "all are taken", timeout=60)
    assert set(taken.values()) == {1}
