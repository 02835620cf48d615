"""Calls that mypy must refuse: a `type: ignore` that is not needed is an error of its own."""

import shardq

engine = shardq.Engine()
loops = shardq.AsyncEngine()


@engine.task(topic="mail")
async def send(to: str, text: str) -> None: ...


@loops.task
def dig(depth: int) -> None: ...


# ---- named tasks

send.push("ann")  # type: ignore[call-arg]
send.push("ann", 5)  # type: ignore[arg-type]
send.push(("ann", "hello"))  # type: ignore[call-arg, arg-type]
send.push("ann", "hello", delay=5)  # type: ignore[call-arg]
send.options(delay=5).push("ann")  # type: ignore[call-arg]
send.options(delay=5).push("ann", subject="x")  # type: ignore[call-arg]
send.options(delay="soon")  # type: ignore[arg-type]
send.options(later=5)  # type: ignore[call-arg]
engine.task(topics="mail")  # type: ignore[call-overload]
engine.task(key="customer-7")  # type: ignore[call-overload]


def ship(delivery: shardq.Delivery[int]) -> str:
    return delivery.payload  # type: ignore[return-value]


engine.worker().on("number", batch=10)(ship)  # type: ignore[type-var]
engine.worker().on("number", linger=5)  # type: ignore[call-overload]


def ship_all(batch: shardq.Batch[int]) -> int:
    return batch.payloads  # type: ignore[return-value]


engine.worker().on("number", batch=10)(ship_all)
engine.worker().on("number")(ship_all)  # type: ignore[type-var]


async def main() -> None:
    await send("ann")  # type: ignore[call-arg]
    dig.push(5)  # type: ignore[unused-coroutine]
    await dig.push("deep")  # type: ignore[arg-type]
    await dig.options().push()  # type: ignore[call-arg]
    loops.push("x")  # type: ignore[unused-coroutine]
    await loops.push("x", delay="soon")  # type: ignore[arg-type]
    await engine.push("x")  # type: ignore[misc]
    loops.buffered()  # type: ignore[attr-defined]
    loops.worker(processes=2)  # type: ignore[call-arg]
    for _ in loops.consumer():  # type: ignore[attr-defined]
        pass
    async with loops.consumer().settling([5]):  # type: ignore[list-item]
        pass
    await loops.push_many(["x"])  # type: ignore[list-item]


# ---- engines

shardq.Engine(name=5)  # type: ignore[arg-type]
shardq.Engine(shard=5)  # type: ignore[call-arg]
shardq.Engine(codec=object())  # type: ignore[arg-type]
shardq.Engine(fsync="never")  # type: ignore[arg-type]
engine.push("x", delay="soon")  # type: ignore[arg-type]
engine.push("x", dely=5)  # type: ignore[arg-type]
engine.push("x", on_conflict="lose")  # type: ignore[arg-type]
engine.push("x", durability="safe")  # type: ignore[arg-type]
engine.push("x", headers={"a": 5})  # type: ignore[dict-item]
shardq.Task("x", delay="soon")  # type: ignore[arg-type]
shardq.Task("x", later=5)  # type: ignore[call-arg]
engine.push_many(["x"])  # type: ignore[list-item]
engine.buffered().push("x", delay="soon")  # type: ignore[arg-type]
engine.buffered().push("x", later=5)  # type: ignore[call-arg]
engine.cancel(5)  # type: ignore[arg-type]
engine.tasks(state="lost")  # type: ignore[arg-type]
engine.forecast("year")  # type: ignore[arg-type]
engine.forward("mail", to=5)  # type: ignore[arg-type]
engine.forward("mail", to=print)  # type: ignore[arg-type]
engine.forward("mail", to="list", side="top")  # type: ignore[arg-type]
engine.limit("mail", concurrency="many")  # type: ignore[arg-type]
engine.every("nightly", cron=5)  # type: ignore[arg-type]
engine.every("nightly", interval=5, catch_up="some")  # type: ignore[arg-type]
engine.consumer("a", "b")  # type: ignore[call-arg, arg-type]
engine.limit("mail", "many")  # type: ignore[arg-type]
engine.schedule()  # type: ignore[call-overload]
engine.consumer().ack("id")  # type: ignore[arg-type]
engine.consumer().bury([])  # type: ignore[call-arg]
shardq.Retry("soon")  # type: ignore[arg-type]
shardq.Snooze()  # type: ignore[call-arg]
shardq.Snooze("soon")  # type: ignore[arg-type]
shardq.Hold()  # type: ignore[call-arg]
shardq.Every(5)  # type: ignore[arg-type]
shardq.outbox.sql(5)  # type: ignore[arg-type]
shardq.metrics.serve(engine, "127.0.0.1:8000", duty="both")  # type: ignore[arg-type]
shardq.otel.instrument(engine, traces="all")  # type: ignore[arg-type]
