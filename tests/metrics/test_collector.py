"""A scrape of one process: exact counters, one look at the engine, and never a scrape that hangs."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

import shardq
from bench.consuming import working
from cluster.ports import free_port
from cluster.server import Server
from shardq import AsyncEngine, Backoff, Batch, Bury, Delivery, Engine, Retry, Snooze, Task, Worker
from shardq.core.dispatcher import poller
from shardq.engine.access import EngineAccess
from shardq.engine.findings import TABLE, found
from shardq.errors import InvalidOption
from shardq.metrics import exposition
from shardq.metrics.exposition import FRESH_S, METRICS
from tests.metrics.scraping import Samples, registry_of, scraped, total
from tests.support.states import claim
from tests.support.waiting import wait_until

SHARDS = 4

A_SCRAPE_S = 25.0
"""Some times the wait of a scrape, and less than a call to a silent server takes here."""

PATIENT_S = 60.0


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=SHARDS) as engine:
        yield engine


def unfresh(registry: CollectorRegistry) -> Samples:
    """A scrape of a look that was not made before."""
    time.sleep(FRESH_S)
    return scraped(registry)


def handling(engine: Engine) -> Worker:
    """Done, retried once and then done, buried, or snoozed: as the payload says."""
    worker = engine.worker(concurrency=8)

    @worker.on("mail")
    def handle(delivery: Delivery) -> None:
        if delivery.payload == "again" and delivery.attempt == 1:
            raise Retry(delay=0)
        if delivery.payload == "never":
            raise Bury("no")
        if delivery.payload == "later":
            raise Snooze(3600)

    return worker


def test_counters_are_exact(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    # a poller can't count what it moved when the answer is lost: on a busy machine one may take longer than it waits
    monkeypatch.setattr(poller, "CALL_TIMEOUT_S", PATIENT_S)
    registry = registry_of(engine)
    engine.start()
    with working(handling(engine)):
        threads = [
            threading.Thread(target=engine.push_many, args=([Task("done", topic="mail")] * 500,)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for payload in ("again",) * 20 + ("never",) * 10 + ("later",) * 5:
            engine.push(payload, topic="mail")
        for _ in engine.push_iter(Task("done", topic="mail") for _ in range(100)):
            pass
        # a poller counts what it has moved when it hears the answer: workers may be quicker
        for counter in ("shardq_handled_total", "shardq_dispatched_total"):
            wait_until(lambda: total(scraped(registry), counter) >= 2155, f"{counter} has all")  # noqa: B023  called at once
        seen = scraped(registry)
    assert total(seen, "shardq_pushed_total") == 2135
    assert total(seen, "shardq_handled_total", topic="mail", outcome="done") == 2120
    assert total(seen, "shardq_handled_total", topic="mail", outcome="retried") == 20
    assert total(seen, "shardq_handled_total", topic="mail", outcome="buried") == 10
    assert total(seen, "shardq_handled_total", topic="mail", outcome="snoozed") == 5
    assert total(seen, "shardq_dispatched_total", topic="mail") == 2155
    for histogram in ("shardq_handler_seconds", "shardq_pickup_lateness_seconds", "shardq_dispatch_lateness_seconds"):
        assert total(seen, f"{histogram}_count", topic="mail") == 2155
        assert total(seen, f"{histogram}_bucket", topic="mail", le="+Inf") == 2155
        assert total(seen, f"{histogram}_sum", topic="mail") >= 0


def test_batches_are_counted_by_call_and_by_task(engine: Engine) -> None:
    registry = registry_of(engine)
    worker = engine.worker()

    @worker.on("events", batch=100, backoff=Backoff(base=3600, cap=3600))
    def store(batch: Batch[object]) -> None:
        if "poison" in batch.payloads:
            raise ValueError("poison")

    @worker.on("mail")
    def send(delivery: Delivery) -> None: ...

    engine.push_many([Task("x", topic="mail"), Task("poison", topic="events")] + [Task("x", topic="events")] * 2)
    engine.start()
    wait_until(lambda: engine.stats().ready == 4, "a claim gets them all")
    with working(worker):
        wait_until(lambda: total(scraped(registry), "shardq_handled_total") == 4, "all are counted")
        seen = scraped(registry)
    assert total(seen, "shardq_handled_total", topic="events", outcome="done") == 2
    assert total(seen, "shardq_handled_total", topic="events", outcome="retried") == 1
    assert total(seen, "shardq_pickup_lateness_seconds_count", topic="events") == 3
    calls = total(seen, "shardq_handler_batch_size_count", topic="events")
    assert calls in (3, 5), "all three, then two and one, and then the two alone if the poison was among them"
    assert total(seen, "shardq_handler_seconds_count", topic="events") == calls
    assert total(seen, "shardq_handler_batch_size_sum", topic="events") == {3: 6, 5: 8}[int(calls)]
    bounds = [str(float(2**n)) for n in range(11)] + ["+Inf"]
    counts = [total(seen, "shardq_handler_batch_size_bucket", topic="events", le=le) for le in bounds]
    assert counts == [{3: 1, 5: 3}[int(calls)], calls - 1, *[calls] * 10]
    assert not total(seen, "shardq_handler_batch_size_count", topic="mail"), "it has no handler of batches"


@pytest.mark.slow
def test_counters_do_not_fall_when_a_worker_ends(engine: Engine) -> None:
    registry = registry_of(engine)
    engine.start()
    for handled in (1, 2):
        with working(handling(engine)):
            engine.push("done", topic="mail")
            wait_until(lambda: total(scraped(registry), "shardq_handled_total") == handled, "it is counted")  # noqa: B023
    assert total(scraped(registry), "shardq_handled_total") == 2


def test_a_worker_that_runs_already_is_counted_from_the_first_collector_on(engine: Engine) -> None:
    engine.start()
    with working(handling(engine)):
        engine.push("done", topic="mail")
        wait_until(lambda: engine.stats().scheduled + engine.stats().ready + engine.stats().leased == 0, "it is done")
        registry = registry_of(engine)
        engine.push("done", topic="mail")
        wait_until(lambda: total(scraped(registry), "shardq_handled_total"), "the second is counted")


@pytest.mark.slow
def test_the_engine_as_a_whole(engine: Engine) -> None:
    registry = registry_of(engine)
    engine.push_many([Task(n, delay=3600) for n in range(3)] + [Task(n, topic="mail") for n in range(5)])
    alone = scraped(registry)
    assert (total(alone, "shardq_up"), total(alone, "shardq_unseen_shards")) == (1, 0)
    assert total(alone, "shardq_unserved_shards") == SHARDS
    assert total(alone, "shardq_tasks", state="scheduled") == 8
    engine.start()
    wait_until(lambda: total(scraped(registry), "shardq_unserved_shards") == 0, "all shards are served")
    wait_until(lambda: total(scraped(registry), "shardq_tasks", state="ready", topic="mail") == 5, "they are ready")
    served = scraped(registry)
    assert total(served, "shardq_tasks", state="scheduled") == 3
    assert total(served, "shardq_head_age_seconds") == 0
    # ready tasks stay where they are until they are taken
    assert total(served, "shardq_oldest_ready_seconds", topic="mail") >= 0
    assert total(served, "shardq_misplaced_tasks") == 0
    engine.stop()
    engine.push_many([Task(n, delay=3600) for n in range(1000)])
    engine.resize(2 * SHARDS)
    changing = unfresh(registry)
    assert total(changing, "shardq_unswept_shards") > 0
    assert 400 < total(changing, "shardq_misplaced_tasks") < 600, "half of them belong to the new shards"
    engine.start()
    with working(handling(engine)):
        wait_until(
            lambda: total(unfresh(registry), "shardq_unswept_shards") == 0, "all is where it belongs", timeout=60
        )
    assert total(unfresh(registry), "shardq_misplaced_tasks") == 0


def test_what_waits_for_a_retry_is_counted_by_topic(engine: Engine) -> None:
    registry = registry_of(engine)
    engine.push_many([Task(n, topic="mail") for n in range(3)])
    engine.start()
    consumer = engine.consumer("mail")
    consumer.retry(claim(consumer, 2), delay=3600)
    seen = scraped(registry)
    assert (total(seen, "shardq_retrying", topic="mail"), total(seen, "shardq_retrying")) == (2, 2)


@pytest.mark.slow
def test_deaths_are_counted_and_not_drawn(engine: Engine) -> None:
    """So the rule on them rises when tasks die, and only then: whoever looks, at whatever else is drawn."""
    engine.start()
    engine.push_many(Task(n, topic=f"t{n % 10}") for n in range(4000))
    consumer = engine.consumer([f"t{n}" for n in range(10)])
    left = 4000
    while left:
        deliveries = consumer.claim(500, wait=PATIENT_S)
        consumer.bury(deliveries, "no")
        left -= len(deliveries)
    registries = [registry_of(engine) for _ in range(3)]
    for registry in registries:
        seen = scraped(registry)
        assert [total(seen, "shardq_died_total", topic=f"t{n}") for n in range(10)] == [400] * 10
    assert [topic.died for topic in engine.stats().topics.values()] == [400] * 10
    engine.purge("t3")
    assert total(unfresh(registries[0]), "shardq_died_total", topic="t3") == 400
    engine.push("x", topic="t3")
    consumer.bury(consumer.claim(wait=PATIENT_S), "no")
    assert total(unfresh(registries[0]), "shardq_died_total") == engine.stats().died == 4001


def test_every_metric_is_exported_under_its_name(engine: Engine) -> None:
    families = {family.name: family for family in registry_of(engine).collect()}
    assert list(families) == [metric.name.removesuffix("_total") for metric in METRICS.values()]
    for metric in METRICS.values():
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)


def test_many_scrapes_look_once_a_second(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, looks = registry_of(engine), []
    health = engine.health

    def counted() -> shardq.Health:
        looks.append(time.monotonic())
        return health()

    monkeypatch.setattr(engine, "health", counted)
    for _ in range(20):
        assert total(scraped(registry), "shardq_up") == 1
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(looks))


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_an_asyncio_engine_is_scraped_in_its_loop_too(url: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def program() -> None:
        async with AsyncEngine(url, name=name, shards=SHARDS) as engine:
            registry = registry_of(engine)
            await engine.start()
            await engine.push("x", topic="mail", delay=3600)
            wait_until(lambda: total(scraped(registry), "shardq_unserved_shards") == 0, "all shards are served")
            seen = await asyncio.to_thread(scraped, registry)
            assert total(seen, "shardq_up") == total(seen, "shardq_pushed_total") == 1
            assert total(seen, "shardq_tasks", state="scheduled") == 1

    asyncio.run(program())
    assert "metrics" not in caplog.text


def test_a_silent_server_holds_up_no_scrape(own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=SHARDS, timeout=PATIENT_S) as engine:
        engine.push("x")
        registry = registry_of(engine)
        assert total(scraped(registry), "shardq_up") == 1
        own_server.pause()
        try:
            began = time.monotonic()
            silent = unfresh(registry)
            assert time.monotonic() - began < A_SCRAPE_S
        finally:
            own_server.resume()
        assert (total(silent, "shardq_up"), total(silent, "shardq_pushed_total")) == (0, 1)
        assert not [each for each in silent if each[0] == "shardq_tasks"]
        wait_until(lambda: total(scraped(registry), "shardq_up") == 1, "it looks again", timeout=60)


def test_a_closed_engine_is_down(url: str, name: str) -> None:
    with Engine(url, name=name, shards=1) as engine:
        registry = registry_of(engine)
    assert total(scraped(registry), "shardq_up") == 0


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(InvalidOption, match="give an Engine or an AsyncEngine"):
        shardq.metrics.collector("redis://127.0.0.1")  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_verdict_and_each_finding(engine: Engine) -> None:
    registry = registry_of(engine)
    engine.push("x", at=time.time() - 100)
    ill = scraped(registry)
    assert total(ill, "shardq_healthy") == 0
    names = {name for name in TABLE if total(ill, "shardq_finding", name=name, severity="red")}
    assert names == {"no_dispatcher", "overdue"}
    cheap = [row for row in TABLE.values() if row.look == "cheap"]
    assert sum(name == "shardq_finding" for name, _ in ill) == sum(len(row.severities) for row in cheap)
    engine.start()
    wait_until(lambda: total(unfresh(registry), "shardq_healthy") == 1, "all is well")
    assert total(scraped(registry), "shardq_finding", severity="red") == 0


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_an_asyncio_engine_tells_the_problems_of_its_own_process(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        async with AsyncEngine(url, name=name, shards=SHARDS) as engine:
            registry = registry_of(engine)
            await engine.start()
            own = [found("worker", worker="a worker of this process", problem="its thread has ended")]
            monkeypatch.setattr(EngineAccess(engine).running, "findings", lambda: own)
            seen = await asyncio.to_thread(scraped, registry)
            assert (total(seen, "shardq_healthy"), total(seen, "shardq_finding", name="worker", severity="red")) == (
                0,
                1,
            )

    asyncio.run(program())


def test_sinks(engine: Engine, own_server: Server) -> None:
    registry = registry_of(engine)
    engine.start()
    engine.forward("mail", to=f"{own_server.url}#mail")
    engine.forward("hooks", to=f"http://127.0.0.1:{free_port()}/")
    engine.push_many([Task(n, topic=topic) for topic in ("mail", "hooks") for n in range(10)])
    wait_until(lambda: total(scraped(registry), "shardq_sink_circuit_open", topic="hooks") == 1, "it is down")
    wait_until(lambda: total(scraped(registry), "shardq_sink_sent_total", topic="mail") == 10, "they are taken")
    seen = scraped(registry)
    assert total(seen, "shardq_sink_failed_total", topic="hooks") > 0
    names = ("shardq_sink_circuit_open", "shardq_sink_failed_total", "shardq_sink_buried_total")
    assert [total(seen, name, topic="mail") for name in names] == [0, 0, 0]
    engine.forward("hooks", to=None)
    assert total(scraped(registry), "shardq_sink_circuit_open", topic="hooks") == 0


def test_the_counters_of_many_sinks_add_up(engine: Engine, own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MOST_TOPICS", 2)
    registry = registry_of(engine)
    engine.start()
    topics = [f"mail-{n}" for n in range(5)]
    for topic in topics:
        engine.forward(topic, to=f"{own_server.url}#{topic}")

    def sent(*names: str) -> float:
        seen = scraped(registry)
        return sum(total(seen, "shardq_sink_sent_total", topic=name) for name in names)

    engine.push_many([Task(n, topic=topic) for topic in topics[3:] for n in range(3)])
    wait_until(lambda: sent(*topics[3:]) == 6, "those that were first to send have names")
    engine.push_many([Task(n, topic=topic) for topic in topics for n in range(3)])
    wait_until(lambda: sent(*topics[3:], "*") == 21, "the rows add up")
    assert (sent("*"), sent(*topics[:3])) == (9, 0)
