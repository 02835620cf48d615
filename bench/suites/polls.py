"""Workers over HTTP: what claims that wait cost the gateway, and a task that is claimed and settled alone, or together.

The gateway is a process of its own, whose CPU time is read from outside. Clients are bare connections, so that they
cost little beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.children import Child
from bench.figures import Figure
from bench.stand import Stand, Suite
from shardq import Engine, Task

TOPICS = 20

WAIT_S = 50.0

LOOKS_S = 12.0
"""Longer than the ten seconds after which claims that wait look by themselves."""


def _measure(stand: Stand) -> Iterator[Figure]:
    with (
        stand.engine() as engine,
        tempfile.TemporaryDirectory() as folder,
        Child("bench.gateway", stand.url, engine.name, place := Path(folder) / "place") as gateway,
    ):
        engine.start()
        gateway.await_ready()
        gateway.begin()
        stand.until(lambda: place.exists() and bool(place.read_text()), "the gateway is up")
        port = int(place.read_text().rpartition(":")[2])
        process = psutil.Process(gateway.pid)
        waits = stand.pick(100, 1000)
        stand.say(f"{waits:,} claims wait on {TOPICS} topics")
        share = asyncio.run(_waiting(port, process, waits, stand.pick(2.0, 2 * LOOKS_S)))
        yield Figure(
            f"{waits:,} claims that wait over HTTP on {TOPICS} topics: CPU of the gateway",
            100 * share,
            "% of a core",
            reference="aim: ≤ 5",
        )
        for size, count in ((1, stand.pick(200, 2000)), (100, stand.pick(2000, 20_000))):
            stand.say(f"{count:,} tasks are claimed and settled over HTTP, {size} at a time")
            engine.push_many([Task(n, topic="work") for n in range(count)])
            ready = partial(_ready, engine, count)
            stand.until(ready, "all tasks are ready")
            spent_s = asyncio.run(_working(port, process, size, count))
            about = f"claimed and settled over HTTP, {size} at a time"
            yield Figure(f"{about}: CPU of the gateway for a task", 1e6 * spent_s / count, "µs")
        gateway.end()


SUITE = Suite("polls", "claims that wait over HTTP, and tasks worked on there", _measure)


def _ready(engine: Engine, count: int) -> bool:
    return engine.stats().topics["work"].ready == count


class _Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> _Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def post(self, path: str, value: object) -> Any:
        body = json.dumps(value).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        [length] = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
        answer = await self._reader.readexactly(length)
        if not lines[0].startswith(b"http/1.1 200"):
            raise RuntimeError(f"{path}: {answer.decode()}")
        return json.loads(answer)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _waiting(port: int, process: psutil.Process, count: int, seconds: float) -> float:
    """The part of a core that the gateway takes, once all have asked, and while some of them ask again."""

    async def poll(number: int) -> None:
        async with _Client(port) as client:
            wait = WAIT_S * number / count  # so that they end one after the other
            while True:
                await client.post("/v1/claim", {"topics": [f"t{number % TOPICS}"], "wait": round(wait, 3)})
                wait = WAIT_S

    polls = [asyncio.create_task(poll(number)) for number in range(count)]
    await asyncio.sleep(min(LOOKS_S, seconds))
    before, began = _cpu_s(process), time.monotonic()
    await asyncio.sleep(seconds)
    share = (_cpu_s(process) - before) / (time.monotonic() - began)
    for each in polls:
        each.cancel()
    ended = await asyncio.gather(*polls, return_exceptions=True)
    for exc in ended:
        if not isinstance(exc, asyncio.CancelledError) and isinstance(exc, BaseException):
            raise exc
    return share


async def _working(port: int, process: psutil.Process, size: int, count: int) -> float:
    """The CPU time of the gateway for so many tasks."""
    before, left = _cpu_s(process), count
    async with _Client(port) as client:
        while left:
            tasks = (await client.post("/v1/claim", {"topics": ["work"], "max": size}))["tasks"]
            if tasks:
                await client.post("/v1/settle", [{"receipt": task["receipt"], "do": "ack"} for task in tasks])
            left -= len(tasks)
    return _cpu_s(process) - before
