"""Key waits: how long tasks with a key were due before they became ready, told by the fleet, by metrics and by the
dashboard.
"""

from __future__ import annotations

import time

import pytest

from shardq import Delivery, Engine, Task
from shardq.core.dispatcher import membership
from shardq.core.fleet import report
from shardq.core.fleet.lateness import Lateness
from shardq.engine.access import EngineAccess
from tests.keys.account import TOPIC
from tests.metrics.scraping import registry_of, scraped, total
from tests.support.engines import Engines
from tests.support.states import claim
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher reports at once."""
    monkeypatch.setattr(membership, "ALONE_BEAT_S", 0.2)
    monkeypatch.setattr(report, "LEAST_GAP_S", 0.1)


def waits(engine: Engine) -> Lateness:
    """How long tasks waited, as this process has counted: those that an ack handed their key to, too."""
    return EngineAccess(engine).running.key_waits().get(TOPIC, Lateness())


def counted(engine: Engine, count: int) -> tuple[int, int]:
    """The median and the longest wait in ms, once so many are reported."""
    wait_until(lambda: waits(engine).count == count, f"{count} are reported")
    found = waits(engine)
    assert found.p50_ms is not None
    assert found.max_ms is not None
    return found.p50_ms, found.max_ms


def at_most(seconds: float) -> float:
    """The highest value in ms that a bin may read of a wait that was no longer."""
    return seconds * 1000 * 9 / 8 + 1


def test_a_task_that_waited_behind_its_key(running: Engine) -> None:
    """Two seconds, of which most is before the push: that is what its due time says."""
    began = time.monotonic()
    running.push("first", topic=TOPIC, key="k", id="1")
    (first,) = claim(running.consumer(TOPIC), 1)
    before = time.time() - 2
    behind = time.monotonic()
    second = running.push("second", topic=TOPIC, key="k", id="2", at=before)
    seen = running.get(second)
    assert seen is not None
    assert seen.state == "held"
    assert counted(running, 1)[1] <= at_most(behind - began), "it waited for nothing"
    running.consumer(TOPIC).ack(first)
    claim(running.consumer(TOPIC), 1)
    over = time.time() - before
    middle, longest = counted(running, 2)
    assert 2000 <= longest <= at_most(over)
    assert middle <= at_most(behind - began)


def test_each_task_is_in_one_histogram(url: str, name: str) -> None:
    with Engine(url, name=name, shards=4) as engine:
        engine.start()
        registry = registry_of(engine)
        engine.push_many([Task(n, topic=TOPIC, key=f"k{n}") for n in range(7)])
        engine.push_many([Task(n, topic=TOPIC) for n in range(5)] + [Task(n, topic="plain") for n in range(3)])
        wait_until(lambda: total(scraped(registry), "shardq_dispatched_total") == 15, "all are moved")
        seen = scraped(registry)
        for topic, keyed, plain in ((TOPIC, 7, 5), ("plain", 0, 3)):
            assert total(seen, "shardq_dispatched_total", topic=topic) == keyed + plain
            assert total(seen, "shardq_key_wait_seconds_count", topic=topic) == keyed
            assert total(seen, "shardq_dispatch_lateness_seconds_count", topic=topic) == plain
        assert ("shardq_key_wait_seconds_count", frozenset({("engine", engine.name), ("topic", "plain")})) not in seen
        wait_until(lambda: sum(member.dispatched for member in engine.fleet()) == 15, "all are reported")
        (member,) = engine.fleet()
        assert {topic: late.count for topic, late in member.key_wait.items()} == {TOPIC: 7}
        assert {topic: late.count for topic, late in member.dispatch_lateness.items()} == {TOPIC: 5, "plain": 3}
        assert all(late.early == 0 for late in (*member.dispatch_lateness.values(), *member.key_wait.values()))
        stats = engine.stats()
        assert (stats.lateness.count, stats.lateness.early) == (8, 0)


def test_a_worker_reports_those_that_it_hands_a_key_to(
    engines: Engines, running: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.worker.report.BEAT_S", 0.2)
    handled: list[int] = []
    worker = running.worker()

    @worker.on(TOPIC)
    def handle(delivery: Delivery) -> None:
        handled.append(delivery.payload)

    running.push_many([Task(n, topic=TOPIC, key="k", at=time.time() - 60 + n) for n in range(20)])
    with engines.working(worker):
        wait_until(lambda: len(handled) == 20, "all are handled, one after the other")
        wait_until(lambda: waits(running).count == 20, "the last one is settled, too")

        def reported() -> list[int]:
            return [member.key_wait.get(TOPIC, Lateness()).count for member in running.fleet()]

        wait_until(lambda: sum(reported()) == 20, "the dispatcher and the worker report each task once")
        of_worker = [member for member in running.fleet() if member.kind == "worker"]
        assert 0 < of_worker[0].key_wait[TOPIC].count < 20


def test_a_task_that_is_given_again_counts_again(running: Engine) -> None:
    """From the due time of its retry on."""
    running.push("x", topic=TOPIC, key="k", at=time.time() - 3600)
    consumer = running.consumer(TOPIC)
    (delivery,) = claim(consumer, 1)
    assert 3600_000 <= counted(running, 1)[1] <= at_most(3700)
    consumer.retry(delivery, delay=0)
    claim(consumer, 1)
    assert counted(running, 2)[0] < 3600_000
