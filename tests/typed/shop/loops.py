"""Everything of AsyncEngine, for asyncio."""

import datetime as dt
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, assert_type

import shardq

engine = shardq.AsyncEngine("redis://127.0.0.1:6379/0", name="shop", codec="msgpack")
worker = engine.worker(["mail", "invoice"], concurrency=1000, grace=5)
HOUR = dt.timedelta(hours=1)


@engine.task(name="count", every=300)
def count(*numbers: int) -> list[int]:
    return list(numbers)


@worker.task
async def rest() -> None: ...


@worker.on("invoice", timeout=5)
async def invoice(delivery: shardq.Delivery) -> None:
    print(delivery.payload, delivery.failures, delivery.lapses)


@dataclass
class Event:
    user: str
    count: int


@worker.on("events", batch=500, linger=HOUR, concurrency=2, isolate=False, type=Event)
async def store(batch: shardq.Batch[Event]) -> None:
    assert_type(batch.payloads, list[Event])
    assert_type(batch[0].payload.user, str)
    assert_type(batch[1:], Sequence[shardq.Delivery[Event]])
    for delivery in batch:
        with batch.attempt(delivery):
            assert_type(delivery, shardq.Delivery[Event])
    assert_type(batch.ack(batch[0]), bool)


@worker.on("lines", batch=10)
def write(batch: shardq.Batch[str]) -> list[Exception | None]:
    return [None if line else ValueError("empty") for line in batch.payloads]


class Log:
    def error(self, delivery: shardq.Delivery, exception: BaseException) -> None:
        print(delivery.id, exception)


@worker.on_startup
async def connect() -> None:
    print("connected")


@worker.on_shutdown
def disconnect() -> None:
    print("disconnected")


hooks = shardq.Webhooks(engine, timeout=5)


@worker.on("hooks")
async def hook(delivery: shardq.Delivery) -> None:
    url = "https://customer.example/in"
    secret = shardq.webhook_secret("a master secret of at least 24 bytes", url, delivery.key)
    assert_type(secret, str)
    await hooks.post(delivery, url=url, secret=secret)
    await hooks.close()


async def work() -> None:
    assert_type(worker, shardq.AsyncWorker)
    worker.use(Log())
    print(worker.healthy, worker.problems, worker.strays)
    await worker.run(signals=False)
    worker.stop()


async def pushing() -> None:
    assert_type(await engine.push({"order": 42}, delay=HOUR, id="one", dedup=60), shardq.Receipt)
    assert_type(await engine.push_many([shardq.Task(1)]), list[shardq.Receipt])
    async for ids in engine.push_iter(shardq.Task(n) for n in range(10)):
        assert_type(ids, list[shardq.Receipt])
    assert_type(await count.push(1, 2, 3), shardq.Receipt)
    assert_type(count(1), list[int])
    pusher: shardq.worker.Pusher[[], Coroutine[Any, Any, shardq.Receipt]] = rest.options(expires=60)
    assert_type(await pusher.push(), shardq.Receipt)


async def by_id(id: str) -> None:
    assert_type(await engine.cancel(id), shardq.Outcome)
    assert_type(await engine.reschedule(id, delay=HOUR), shardq.Outcome)
    assert_type(await engine.requeue(id), shardq.Outcome)
    assert_type(await engine.get(id), shardq.TaskInfo | None)
    assert_type(await engine.cancel_all(tag="user-42"), shardq.BulkResult)


async def many() -> None:
    assert_type(await engine.tasks(holder="me", cursor=None), shardq.TaskPage)
    async for task in engine.dead("mail"):
        assert_type(task, shardq.TaskInfo)
    assert_type(await engine.cancel_all(topic="mail"), shardq.BulkResult)
    assert_type(await engine.requeue_all("mail"), shardq.BulkResult)
    assert_type(await engine.reschedule_all(topic="mail", at=0.0), shardq.BulkResult)
    assert_type(await engine.changes(), list[shardq.engine.Change])
    assert_type([line async for line in engine.export("mail")], list[bytes])
    assert_type((await engine.restore(engine.export(key="customer-7"))).restored, int)
    assert_type((await engine.restore(["{}"], dry_run=True)).bad, int)
    assert_type(await engine.history(), shardq.History)
    assert_type(await engine.forecast(), shardq.Forecast)


async def operating() -> None:
    async with engine as opened:
        assert_type(opened, shardq.AsyncEngine)
    assert_type(await engine.open(), shardq.AsyncEngine)
    await engine.start()
    await engine.stop()
    assert_type(await engine.stats(), shardq.Stats)
    assert_type(await engine.health(), shardq.Health)
    assert_type(await engine.fleet(), list[shardq.Member])
    await engine.pause("mail")
    await engine.resume("mail")
    await engine.limit("mail", rate=100)
    assert_type(await engine.keys("mail", limit=5), shardq.engine.KeyList)
    await engine.configure(dead_count=1000)
    await engine.forward("emails", to="nats://10.0.0.7:4222#emails")
    assert_type(await engine.purge(everything=True), int)
    assert_type(engine.name, str)
    assert_type(engine.topology.shards, int)
    await engine.close()


async def growing() -> None:
    resize = await engine.resize(64, dry_run=True)
    assert_type(resize, shardq.AsyncResize)
    assert_type(await resize.wait(timeout=60), bool)
    assert_type(await resize.done(), bool)
    assert_type(await resize.progress(), shardq.core.resharding.Progress)
    resize = await engine.resize(dry_run=True)


async def recurring() -> None:
    await engine.every("poll", interval=HOUR, headers={"a": "b"}, max_attempts=3, end=2e9)
    assert_type(await engine.schedule(owner="shop").prune(keep=["poll"]), list[str])
    assert_type(await engine.schedules(), list[shardq.Schedule])
    await engine.schedule("poll").pause()
    await engine.schedule("poll").resume()
    assert_type(await engine.schedule("poll").run(), shardq.Receipt)
    await engine.schedule("poll").remove()


async def consuming() -> None:
    consumer = engine.consumer("mail", prefetch=True)
    assert_type(consumer, shardq.AsyncConsumer)
    deliveries = await consumer.claim(10, wait=1.0)
    assert_type(deliveries, list[shardq.Delivery])
    for delivery in deliveries:
        async with consumer.settling(delivery):
            await consumer.extend(delivery, 60)
    await consumer.ack(deliveries)
    await consumer.retry(deliveries[0], delay=HOUR)
    await consumer.bury(deliveries[0], "of no use")
    await consumer.snooze(deliveries[0], HOUR)
    await consumer.hold(deliveries[0], HOUR)
    async for delivery in consumer:
        assert_type(delivery, shardq.Delivery)
    consumer.close()
