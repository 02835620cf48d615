"""Everything of Engine, for threads."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_type

import shardq
from shardq.features.replay.journal import ReplayStats
from shardq.features.transfer import Restored
from shardq.relay.report import SpoolStats


class Text:
    """A codec."""

    name = "text"

    def encode(self, payload: str) -> bytes:
        return payload.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


codec: shardq.Codec = Text()
notes = shardq.Engine(codec=codec)
engine = shardq.Engine("redis://127.0.0.1:6379/0", name="shop", shards=16, spool="spool", replay=10.0, timeout=5)
worker = engine.worker({"mail": 2, "": 1}, concurrency=8, processes=2, backoff=shardq.Backoff(base=2.0))


@dataclass
class Order:
    number: int


HOUR = dt.timedelta(hours=1)


@engine.task(topic="mail", timeout=60, max_attempts=3, every=shardq.Every("0 3 * * *", tz="Europe/Berlin"))
async def send(to: str = "", text: str = "") -> int:
    return len(text)


@engine.task(topic="ship", key=lambda order, to: f"{to}-{order}")
def parcel(order: int, to: str) -> None: ...


@worker.task(aliases=("dig_deep",), timeout=5, key=lambda depth: str(depth))
def dig(depth: int, *, fast: bool) -> str:
    return "deep"


@worker.on("invoice", type=dict, timeout=5, max_attempts=5, backoff=shardq.Backoff())
def invoice(delivery: shardq.Delivery) -> None:
    if delivery.attempt == 1:
        raise shardq.Retry(delay=60, reason="later")
    if delivery.attempt == 2:
        raise shardq.Snooze(HOUR)
    if delivery.attempt == 3 and delivery.key is not None:
        assert_type(delivery.fence, int)
        raise shardq.Hold(HOUR)
    raise shardq.Bury("of no use")


@worker.on("order", type=Order)
def ship(delivery: shardq.Delivery[Order]) -> None:
    assert_type(delivery.payload, Order)
    assert_type(delivery.payload.number, int)


@dataclass
class Event:
    user: str
    count: int


@worker.on("events", batch=500, linger=0.2, concurrency=2, timeout=60, type=Event)
def store(batch: shardq.Batch[Event]) -> None:
    assert_type(batch.topic, str)
    assert_type(batch.payloads, list[Event])
    assert_type(batch.lost, Sequence[shardq.Delivery[Event]])
    for delivery in batch:
        with batch.attempt(delivery):
            assert_type(delivery.payload.count, int)
    batch.retry(batch[0], delay=HOUR, reason="later")
    batch.bury(batch[1], "of no use")
    batch.snooze(batch[2], HOUR)
    assert_type(batch.hold(batch[3], 60), bool)
    assert_type(batch.index(batch[4]), int)


@worker.on("lines", batch=10, isolate=False)
async def write(batch: shardq.Batch[Any]) -> list[BaseException | None]:
    assert_type(batch.payloads, list[Any])
    return [None] * len(batch)


class Log:
    def before(self, delivery: shardq.Delivery) -> None:
        print(delivery.id, delivery.topic, delivery.headers, delivery.tags)


@worker.on_startup
def connect() -> None:
    print("connected")


@worker.on_shutdown
async def disconnect() -> None:
    print("disconnected")


def work() -> None:
    assert_type(worker, shardq.Worker)
    assert_type(shardq.current(), shardq.Delivery[Any])
    worker.use(Log())
    print(worker.healthy, worker.problems, worker.strays)
    worker.processes = 4
    assert_type(worker.processes, int)
    worker.run(signals=False)
    worker.stop()


def pushing() -> None:
    id = engine.push(
        {"order": 42},
        delay=HOUR,
        topic="mail",
        key="ann",
        id="order-42",
        on_conflict="replace",
        dedup=60,
        headers={"a": "b"},
        max_attempts=3,
        expires=dt.datetime.now(dt.UTC),
        window=60,
        tags=["user-42"],
        durability="replicated",
    )
    assert_type(id, shardq.Receipt)
    assert_type(id.outcome, shardq.Outcome)
    engine.push("news", at=dt.datetime.now(dt.UTC), id="news", throttle=60.0)
    assert_type(engine.push_many([shardq.Task(1, delay=5)], durability="fsynced"), list[shardq.Receipt])
    for ids in engine.push_iter(shardq.Task(n, at=0.0) for n in range(10)):
        assert_type(ids, list[shardq.Receipt])
    with engine.buffered() as buffer:
        assert_type(buffer, shardq.Buffer)
        pending = buffer.push({"order": 42}, delay=60, topic="mail")
        assert_type(pending, shardq.Pending)
        assert_type(pending.id, str)
        print(pending.done())
        buffer.flush()
        assert_type(pending.result(timeout=5), shardq.Receipt)
        buffer.close()
    assert_type(send.push("ann"), shardq.Receipt)
    assert_type(send.call("ann"), shardq.Task)
    later = send.options(delay=5, key="ann", id="one", durability="fsynced", tags=["a"])
    assert_type(later.push("ann", text="hello"), shardq.Receipt)
    by_name: shardq.NamedTask[[str], str, shardq.Receipt] = engine.task(topic="names")(str.upper)
    assert_type(by_name.push("ann"), shardq.Receipt)
    assert_type(dig.push(5, fast=True), shardq.Receipt)
    assert_type(dig(5, fast=True), str)


def by_id(id: str) -> None:
    assert_type(engine.cancel(id), shardq.Outcome)
    assert_type(engine.reschedule(id, delay=HOUR), shardq.Outcome)
    if (outcome := engine.requeue(id, at=0.0)) is shardq.Outcome.REQUEUED:
        print(outcome)
    info = engine.get(id, decode=False)
    assert_type(info, shardq.TaskInfo | None)
    if info is not None:
        assert_type(info.due, dt.datetime | None)
        assert_type(info.tags, tuple[str, ...])
        assert_type(info.attempts, tuple[shardq.Attempt, ...])
    tagged = engine.cancel_all(tag="user-42", progress=lambda so_far: print(so_far.looked_at))
    assert_type(tagged, shardq.BulkResult)
    assert_type(tagged.running, tuple[str, ...])


def many() -> None:
    page = engine.tasks(topic="mail", state="dead", due=(None, dt.datetime.now(dt.UTC)), limit=10)
    assert_type(page, shardq.TaskPage)
    assert_type([task.reason for task in page], list[str | None])
    assert_type(page.cursor, str | None)
    for task in engine.dead("mail"):
        assert_type(task, shardq.TaskInfo)
    result = engine.cancel_all(topic="mail", dry_run=True, progress=lambda so_far: print(so_far.done))
    assert_type(result, shardq.BulkResult)
    assert_type(engine.requeue_all("mail"), shardq.BulkResult)
    assert_type(engine.requeue_all(everything=True, dry_run=True), shardq.BulkResult)
    assert_type(engine.requeue_all("mail", reason="TimeoutError"), shardq.BulkResult)
    assert_type(engine.reschedule_all(everything=True, delay=60), shardq.BulkResult)
    changes: list[shardq.engine.Change] = engine.changes()
    lines: list[bytes] = [*engine.export("mail", secrets=True, state="dead")]
    restored: Restored = engine.restore(lines, dry_run=True)
    assert_type(engine.restore(line.decode() for line in engine.export()).errors, tuple[tuple[int, str], ...])
    print(restored.kept, restored.is_cut)
    assert_type(changes[0].at, dt.datetime)
    past = engine.history("day")
    assert_type(past, shardq.History)
    point: shardq.features.history.HistoryPoint = past.points[0]
    assert_type(point.dispatched, int | None)
    forecast = engine.forecast("day")
    assert_type(forecast, shardq.Forecast)
    assert_type(forecast.total, int)


def operating() -> None:
    with engine.open() as opened:
        assert_type(opened, shardq.Engine)
        opened.start()
        opened.stop()
    stats = engine.stats(shards=True)
    assert_type(stats.shown(stats.scheduled), str)
    assert_type(stats.is_retrying_estimated, bool)
    assert_type(stats, shardq.Stats)
    assert_type(stats.shards, list[shardq.engine.ShardStats])
    assert_type(stats.topics["mail"], shardq.engine.TopicStats)
    assert_type(stats.topics["mail"].held, int)
    assert_type(stats.rates, shardq.engine.Rates | None)
    assert_type(stats.spool, SpoolStats | None)
    assert_type(stats.replay, ReplayStats | None)
    health = engine.health(max_late=5.0, max_ready_age=60, max_dead=1000)
    assert_type(health, shardq.Health)
    assert_type(health.ok, bool)
    assert_type(health.severity, Literal["ok", "route", "engine"])
    assert_type(health.reasons, list[str])
    assert_type(health.warnings, list[str])
    assert_type(health.findings, list[shardq.Finding])
    for finding in health.findings:
        assert_type(finding.severity, Literal["red", "warning", "info"])
        assert_type(finding.since, dt.datetime | None)
        print(finding, finding.name, finding.about, finding.text, finding.advice)
    assert_type(engine.fleet(), list[shardq.Member])
    engine.pause("mail")
    engine.resume("mail")
    engine.limit("mail", rate=100, concurrency=20)
    engine.limit("mail", None)
    engine.limit("mail", per_key=20, per_key_rate=5)
    assert_type(engine.keys("mail", limit=5), shardq.engine.KeyList)
    engine.configure(max_attempts=10, dead_age=HOUR, dead_count=1000)
    engine.configure(done_age=HOUR, done_count=1000, topics={"mail": {"done_age": 60}})
    if ended := engine.get("mail/1", ended=True):
        assert_type((ended.pushed, ended.ended), tuple[dt.datetime | None, dt.datetime | None])
        assert_type((ended.seconds, ended.failure), tuple[float | None, str | None])
    assert_type(engine.tasks("mail", state="done").since, dt.datetime | None)
    assert_type(stats.settings, shardq.core.layout.topology.EngineSettings)
    assert_type((stats.settings.max_attempts, stats.settings.dead_age), tuple[int, float])
    engine.forward("emails", to="mail-queue", side="left")
    engine.forward("letters", to="stream:letters", maxlen=1000)
    assert_type(engine.purge("mail"), int)
    assert_type(engine.name, str)
    assert_type(engine.topology.shards, int)
    engine.close()


def growing() -> None:
    would = engine.resize(64, dry_run=True)
    assert_type((would.tasks, would.bytes, would.shards), tuple[int | None, int | None, int])
    resize = engine.resize(64, rate=1000)
    assert_type(resize, shardq.Resize)
    assert_type(resize.wait(timeout=60), bool)
    assert_type(resize.done(), bool)
    assert_type(resize.progress(), shardq.core.resharding.Progress)
    assert_type(resize.progress().fraction, float)
    resize = engine.resize(dry_run=True)


def recurring() -> None:
    engine.every("nightly", cron="0 3 * * *", tz="Europe/Berlin", topic="reports", payload=[1], jitter=HOUR)
    engine.every("poll", interval=HOUR, catch_up="all", overlap="skip", owner="shop", start=0, expires=HOUR, tags=["a"])
    assert_type(engine.schedule(owner="shop").prune(keep=["poll"]), list[str])
    for schedule in engine.schedules():
        assert_type(schedule, shardq.Schedule)
    engine.schedule("nightly").pause()
    engine.schedule("nightly").resume()
    assert_type(engine.schedule("nightly").run(), shardq.Receipt)
    engine.schedule("nightly").remove()
    every = shardq.Every.of("0 3 * * *")
    print(every.zone, every.interval_ms, every.jitter_ms, every.start_ms, every.end_ms, every.expires_ms)
    print(shardq.Backoff().delay_s(1))


def consuming() -> None:
    consumer = engine.consumer(["urgent", "mail"], lease=60, name="me", prefetch=True)
    assert_type(consumer, shardq.Consumer)
    deliveries = consumer.claim(10, wait=1.0)
    assert_type(deliveries, list[shardq.Delivery])
    for delivery in deliveries:
        with consumer.settling(delivery, delay=5):
            assert_type(delivery.attempt, int)
    consumer.ack(deliveries)
    consumer.retry(deliveries[0], delay=HOUR, reason="later")
    consumer.bury(deliveries[0], "of no use")
    consumer.snooze(deliveries, 60)
    consumer.hold(deliveries, 60)
    consumer.extend(deliveries, 60)
    for delivery in engine.consumer({"high": 5, "low": 1}):
        assert_type(delivery, shardq.Delivery)
    consumer.close()
