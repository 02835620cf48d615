"""Celery: tasks with an ETA, sent by one producer that is kept; one worker process of eight threads, which is faster
here than one with a child.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import celery

from bench.peers.programs import kit

app = celery.Celery("peers", broker=kit.url())
app.conf.task_ignore_result = True
handle = app.task(kit.handled, name="handle")


def push(dues: Sequence[float]) -> None:
    with app.producer_or_acquire() as producer:
        for due in dues:
            handle.apply_async((kit.payload(due),), eta=datetime.fromtimestamp(due, UTC), producer=producer)


if __name__ == "__main__":
    if kit.role() == "push":
        kit.serve_sync(push, chunk=200)
    else:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
        app.worker_main(["worker", "--pool=threads", "--concurrency=8", *quiet])
