"""RQ: ``enqueue_at`` into a pipeline; its worker without a fork for each job, with the scheduler.

It cuts due times to whole seconds. Tasks are therefore due at whole seconds, and lateness counts from those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import redis
import rq

from bench.peers.programs import kit

connection = redis.Redis.from_url(kit.url())
queue = rq.Queue(connection=connection)


def push(dues: Sequence[float]) -> None:
    with connection.pipeline() as pipeline:
        for second in map(math.ceil, dues):
            when = datetime.fromtimestamp(second, UTC)
            queue.enqueue_at(when, kit.handled, kit.payload(second), result_ttl=0, pipeline=pipeline)
        pipeline.execute()


if __name__ == "__main__":
    if kit.role() == "push":
        kit.serve_sync(push, chunk=500)
    else:
        rq.SimpleWorker([queue], connection=connection).work(with_scheduler=True, logging_level="ERROR")
