"""A process that does little and notes how long it takes. It shows how a load or a change of shards feels to others.

``python -m bench.probing pushes URL NAME TOPIC PER_S DELAY_S`` pushes one task at a time, at an even pace, each with a
random delay up to DELAY_S and its due time in ms as payload, and sends a PING after each. A row is [begun, push ms,
ping ms]. A push that fails ends the process.

``python -m bench.probing claims URL NAME TOPIC`` consumes such tasks. A row is [due, late ms, id].

Instants are seconds since the epoch. Suites start it as a ``Child``.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

from bench.children import taking_part
from shardq import Engine
from shardq.core.calls.request import Command
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver

PUSHES, CLAIMS = "pushes", "claims"

CLAIM = 100
WAIT_S = 0.2
"""The process notices its end within this time."""

LEASE_S = 300.0
"""Long enough that no task comes twice."""

_PING: Command[Any] = Command(-1, ("PING",), lambda answer: answer)


def main(role: str, url: str, name: str, topic: str, *pace: str) -> None:
    with Engine(url, name=name) as engine:
        if role == CLAIMS:
            taking_part(lambda ending: _claims(engine, topic, ending))
        else:
            driver = Driver(Settings.from_url(url))
            driver.open()
            # it connects before anything counts
            driver.call(_PING)
            per_s, delay_s = map(float, pace)
            taking_part(lambda ending: _pushes(engine, driver, topic, per_s, delay_s, ending))
            driver.close()


def _pushes(
    engine: Engine, driver: Driver, topic: str, per_s: float, delay_s: float, ending: threading.Event
) -> list[tuple[float, float, float]]:
    rows = []
    next_at = time.perf_counter()
    while not ending.is_set():
        now, began = time.time(), time.perf_counter()
        due_ms = int((now + random.uniform(0, delay_s)) * 1000)
        engine.push(due_ms, at=due_ms / 1000, topic=topic)
        pushed = time.perf_counter()
        driver.call(_PING)
        rows.append((now, (pushed - began) * 1000, (time.perf_counter() - pushed) * 1000))
        next_at = max(next_at + 1 / per_s, began)
        time.sleep(max(0.0, next_at - time.perf_counter()))
    return rows


def _claims(engine: Engine, topic: str, ending: threading.Event) -> list[tuple[float, float, str]]:
    rows = []
    consumer = engine.consumer(topic, lease=LEASE_S)
    while not ending.is_set():
        deliveries = consumer.claim(CLAIM, wait=WAIT_S)
        now_ms = time.time_ns() / 1e6
        rows += [(delivery.payload / 1000, now_ms - delivery.payload, delivery.id) for delivery in deliveries]
        consumer.ack(deliveries)
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
