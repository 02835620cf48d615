"""A Celery app as users have it, with one more line: run as ``celery -A tests.integrations.celery.app worker``.

Its settings come from the environment, as several tests run it at once. Tasks leave what they saw in a list of the
broker: ``Runs`` reads it.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import celery
import redis

import shardq
from shardq.integrations.celery import delay_through

SETTINGS = json.loads(os.environ["SHARDQ_TEST_CELERY"])

app = celery.Celery("tests", broker=SETTINGS["broker"], backend=SETTINGS["backend"])
app.conf.update(
    task_default_queue=SETTINGS["queue"],
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
    **SETTINGS.get("conf", {}),
)
patience = {key: SETTINGS[key] for key in ("timeout", "connect_timeout") if key in SETTINGS}
engine = shardq.Engine(SETTINGS["engine"], name=SETTINGS["name"], shards=4, **patience)
if SETTINGS.get("opened"):
    engine.open()  # before the worker forks
delaying = delay_through(app, engine, above=SETTINGS.get("above", 0.5), shadow=SETTINGS.get("shadow", False))

runs = redis.Redis.from_url(SETTINGS["backend"])


def ran(task: Any, *words: Any) -> None:
    request = task.request
    seen = {
        "id": request.id,
        "words": words,
        "at": time.time(),
        "eta": request.eta,
        "expires": request.expires,
        "retries": request.retries,
        "pid": os.getpid(),
        "info": request.delivery_info,
        "headers": {key: value for key, value in (request.headers or {}).items() if key.startswith("x-")},
        "group": request.group,
        "root": request.root_id,
        "parent": request.parent_id,
    }
    runs.rpush(SETTINGS["runs"], json.dumps(seen))


@app.task(bind=True)
def add(self: Any, left: int, right: int) -> int:
    ran(self, left, right)
    return left + right


@app.task(bind=True)
def total(self: Any, numbers: list[int]) -> int:
    ran(self, *numbers)
    return sum(numbers)


@app.task(bind=True)
def failing(self: Any) -> None:
    ran(self)
    raise ValueError("wanted")


@app.task(bind=True)
def failed(self: Any, request: Any, *_: Any) -> None:
    ran(self, getattr(request, "id", request))


@app.task(bind=True, max_retries=3, default_retry_delay=SETTINGS.get("retry", 0.6))
def again(self: Any, times: int) -> int:
    ran(self, times)
    if self.request.retries < times:
        raise self.retry()
    return times


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def slowly(self: Any, n: int) -> None:
    time.sleep(0.01)
    ran(self, n)
