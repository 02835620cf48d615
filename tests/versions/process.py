"""A process of a fleet of two builds: ``python -m tests.versions.process FORMAT FEATURES URL NAME BOOK``.

It reads formats up to FORMAT, and knows the FEATURES, which have commas between them. It declares a limit at its start
that another build declares otherwise, dispatches, and runs a worker, whose handler fails at the first attempt of each
task with "again" in its payload. Each task that is handled is a line in the BOOK. A line of its stdin is a command,
whose answer is a line of JSON; it ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import shardq
from shardq.core.layout import formats
from shardq.core.layout.topology import Limit
from shardq.engine.versions import upgrade, use_feature
from tests.versions.builds import PLANTED, carried_out


def pushed(engine: shardq.Engine, word: str, count: int) -> list[str]:
    """Pushes of each kind. Returns their ids."""
    tasks = [shardq.Task([word, "plain", n], delay=n % 5 / 2) for n in range(count)]
    tasks += [shardq.Task([word, "again", n], topic="mail", delay=0.5) for n in range(count)]
    ids = [str(id) for id in engine.push_many(tasks)]
    ids += [str(engine.push([word, "named", n], id=f"{word}-{n}", dedup=60, delay=1)) for n in range(count)]
    ids += [str(engine.push([word, "tagged", n], tags=["late"], delay=900)) for n in range(count)]
    # the second of each is kept
    for n in range(count):
        engine.push([word, "named twice", n], id=f"{word}-{n}", dedup=60, delay=1)
    return ids


def change(engine: shardq.Engine, number: int) -> None:
    """Changes what the older format can say, each by a number that tells one change from another."""
    engine.limit("slow", rate=number, concurrency=number)
    engine.limit("turns", per_key=number)
    engine.forward("rows", to=f"stream:rows-{number}")
    engine.configure(topics={"quick": {"rate": number}}, max_attempts=number)
    (engine.pause if number % 2 else engine.resume)("late")
    engine.every(f"tick-{number}", interval=900, topic="ticks", payload=number, key="k")
    engine.hold("turns", key=f"key-{number}", until=None)
    engine.push(number, topic="turns", key=f"key-{number}", delay=900)


def seen(engine: shardq.Engine) -> list[object]:
    """What ``change`` changed, as this process knows it."""
    engine.stats()
    topics = engine.topology.topics
    slow, turns, quick = (topics[topic].limit or Limit() for topic in ("slow", "turns", "quick"))
    return [
        *(slow.rate, slow.concurrency, turns.per_key, engine.topology.routes["rows"].to, quick.rate),
        engine.topology.settings.max_attempts,
        *("late" in engine.topology.paused, sorted(schedule.name for schedule in engine.schedules())),
    ]


def refusal(make: Callable[[], object]) -> str:
    try:
        make()
    except shardq.ShardqError as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""


def main(format: str, features: str, url: str, name: str, book: str) -> None:
    formats.FORMAT = int(format)
    formats.FEATURES = frozenset(filter(None, features.split(",")))
    engine = shardq.Engine(url, name=name, shards=4)
    engine.limit("declared", rate=formats.FORMAT)
    worker = engine.worker(concurrency=4, lease=20, backoff=shardq.Backoff(base=0.2, cap=0.4))
    handled = os.open(book, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @worker.on("mail")
    @worker.on("")
    def handle(delivery: shardq.Delivery) -> None:
        if delivery.payload[1] == "again" and not delivery.attempt > 1:
            raise ValueError("again")
        os.write(handled, f"{delivery.id}\n".encode())

    def answer(command: str, *words: Any) -> object:
        match command:
            case "change":
                change(engine, *words)
            case "seen":
                return seen(engine)
            case "upgrade":
                return refusal(lambda: carried_out(engine, upgrade))
            case "take up":
                return refusal(lambda: carried_out(engine, lambda cache: use_feature(cache, PLANTED)))
            case "push":
                return pushed(engine, *words)
            case "cancel":
                return [str(engine.cancel(id)) for id in words]
            case "reschedule":
                return [str(engine.reschedule(id, delay=0.5)) for id in words]
            case "resize":
                engine.resize(*words)
            case "every":
                engine.every("tick", interval=0.5, topic="ticks", payload="tick")
            case "schedules":
                return [schedule.name for schedule in engine.schedules()]
        return None

    engine.start()
    working = threading.Thread(target=lambda: worker.run(signals=False))
    working.start()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
    worker.stop()
    working.join()
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
