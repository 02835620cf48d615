"""A process of another build of shardq: ``python -m tests.versions.build FORMAT FEATURES URL NAME KIND``.

It reads formats up to FORMAT, and knows the FEATURES, which have commas between them. A ``member`` runs pollers and a
worker, a ``producer`` only pushes. For each line of its stdin it pushes a task and says what became of that, and what
else is wrong; it ends when its stdin does.
"""

from __future__ import annotations

import sys
import threading

from shardq import Delivery, Engine, ShardqError
from shardq.core.layout import formats
from tests.support.workers import say


def main(format: str, features: str, url: str, name: str, kind: str) -> None:
    formats.FORMAT = int(format)
    formats.FEATURES = frozenset(filter(None, features.split(",")))
    engine = Engine(url, name=name, shards=4, timeout=5).open()
    worker, working = engine.worker(), None

    @worker.on("")
    def handle(delivery: Delivery) -> None:
        say(f"handled {delivery.payload}")

    if kind == "member":
        engine.start()
        working = threading.Thread(target=worker.run, kwargs={"signals": False})
        working.start()
    say("ready")
    for number, _ in enumerate(sys.stdin):
        try:
            engine.push(number, delay=3600, topic="late")
            said = "pushed"
        except ShardqError as exc:
            said = f"{type(exc).__name__}: {exc}"
        try:
            reasons = engine.health().reasons
        except ShardqError as exc:
            reasons = [f"{type(exc).__name__}: {exc}"]
        say(" | ".join([said, *reasons]))
    worker.stop()
    if working is not None:
        working.join()
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
