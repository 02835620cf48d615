"""Huey: ``schedule`` one by one; a consumer with 16 threads that looks at the schedule every second, its minimum."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import huey

from bench.peers.programs import kit

app = huey.RedisHuey("peers", url=kit.url(), results=False)
handle = app.task(name="handle")(kit.handled)


def push(dues: Sequence[float]) -> None:
    for due in dues:
        # this time has a zone: Huey cuts naive ones to whole seconds
        handle.schedule(args=(kit.payload(due),), eta=datetime.fromtimestamp(due, UTC))


if __name__ == "__main__":
    if kit.role() == "push":
        kit.serve_sync(push, chunk=200)
    else:
        app.create_consumer(workers=16, worker_type="thread", scheduler_interval=1).run()
