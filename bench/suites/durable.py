"""What a push costs that returns when it is on the disk, under each policy of the append-only file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.figures import Figure, median, percentiles
from bench.loads import FAR_S
from bench.stand import Stand, Suite
from shardq import Engine
from shardq.errors import DurabilityUnavailable

POLICIES = ("always", "everysec")

TOGETHER = 20
"""Threads that push at a time: one confirmation of the disk is good for all of them."""


def _measure(stand: Stand) -> Iterator[Figure]:
    for policy in POLICIES:
        for master in stand.masters:
            master.ask("CONFIG", "SET", "appendonly", "yes")
            master.ask("CONFIG", "SET", "appendfsync", policy)
        with stand.engine() as engine:
            try:
                engine.push(0, delay=FAR_S, durability="fsynced")
            except DurabilityUnavailable:
                stand.say("this server does not know WAITAOF")
                return
            # a push with everysec takes a second or two
            count = stand.pick(2, 10) if policy == "everysec" else stand.pick(20, 200)
            stand.say(f"{policy}: {count} fsynced pushes one after the other, and {TOGETHER * count} from threads")
            took = [_pushed_ms(engine) for _ in range(count)]
            yield Figure(f"fsynced push, appendfsync {policy}", median(took), "ms", percentiles(took))
            began = time.monotonic()
            with ThreadPoolExecutor(TOGETHER) as threads:
                list(threads.map(lambda _: _pushed_ms(engine), range(TOGETHER * count)))
            rate = TOGETHER * count / (time.monotonic() - began)
            yield Figure(f"fsynced pushes of {TOGETHER} threads, appendfsync {policy}", rate, "tasks/s")


def _pushed_ms(engine: Engine) -> float:
    began = time.monotonic()
    engine.push(0, delay=FAR_S, durability="fsynced")
    return (time.monotonic() - began) * 1000


SUITE = Suite("durable", "pushes that wait for the disk", _measure)
