"""A process of a fleet, of whatever build of shardq is found first: ``python FILE URL NAME BOOK``. It uses what each
has.

It dispatches, and runs a worker, whose handler fails at the first attempt of each task with "again" in its payload.
Each task that is handled is a line in the BOOK. A line of its stdin is a command, whose answer is a line of JSON; it
ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import shardq


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


def main(url: str, name: str, book: str) -> None:
    engine = shardq.Engine(url, name=name, shards=4)
    worker = engine.worker(concurrency=4, lease=20, backoff=shardq.Backoff(base=0.2, cap=0.4))
    handled = os.open(book, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @worker.on("mail")
    @worker.on("")
    def handle(delivery: shardq.Delivery) -> None:
        if delivery.payload[1] == "again" and not delivery.attempt > 1:
            raise ValueError("again")
        os.write(handled, f"{delivery.id}\n".encode())

    def carried_out(command: str, *words: Any) -> object:
        match command:
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
        print(json.dumps(carried_out(*json.loads(line))), flush=True)
    worker.stop()
    working.join()
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
