"""Pushes over HTTP: one by one beside a bare POST on the same server, and by lines beside ``AsyncEngine.push_iter``, by
the CPU of the process that serves or pushes. Each is measured in turn with the other.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.children import Child
from bench.figures import Figure
from bench.loads import FAR_S
from bench.stand import Stand, Suite
from shardq import AsyncEngine, Task

ROUNDS = 5
CONNECTIONS = 32
LINES = 10_000

BODY = b'{"payload": {"order": 123456, "customer": "c-123456", "note": "a text of some length"}, "delay": %d}' % FAR_S
PAYLOAD = {"order": 123456, "customer": "c-123456", "note": "a text of some length"}


def _measure(stand: Stand) -> Iterator[Figure]:
    posts, batches = stand.pick(1_000, 10_000), stand.pick(1, 10)
    name = f"bench-http-{random.randrange(10**9)}"
    alone: list[tuple[float, float, float, float]] = []
    many: list[tuple[float, float]] = []
    with (
        stand.engine() as engine,
        tempfile.TemporaryDirectory() as folder,
        Child("bench.gateway", stand.url, engine.name, place := Path(folder) / "place") as child,
    ):
        engine.open()
        child.await_ready()
        child.begin()
        until = time.monotonic() + 60
        while not place.exists() or not place.read_text():
            if time.monotonic() > until:
                raise RuntimeError(f"the gateway of {name} does not come up")
            time.sleep(0.05)
        host, _, port = place.read_text().removeprefix("http://").rpartition(":")
        process = psutil.Process(child.pid)
        for number in range(ROUNDS):
            stand.say(f"{posts:,} POSTs and {batches * LINES:,} lines, round {number + 1} of {ROUNDS}")
            found = []
            for path in ("/bare", "/v1/tasks"):
                before, began = _cpu_s(process), time.monotonic()
                asyncio.run(_post(host, int(port), path, posts))
                wall = time.monotonic() - began
                found += [posts / wall, (_cpu_s(process) - before) / posts * 1e6]
            alone.append((found[0], found[1], found[2], found[3]))
            before = _cpu_s(process)
            asyncio.run(_lines(host, int(port), batches))
            by_lines = (_cpu_s(process) - before) / (batches * LINES) * 1e6
            many.append((by_lines, asyncio.run(_pushed(stand.url, engine.name, batches * LINES))))
        child.end()
    middle = ROUNDS // 2
    rate = sorted(alone, key=lambda each: each[2] / each[0])[middle]
    cost = sorted(alone, key=lambda each: each[1] / each[3])[middle]
    lines = sorted(many, key=lambda each: each[1] / each[0])[middle]
    bare = f"a bare POST of Starlette: {rate[0]:,.0f}/s; aim: ≥ 0.5"
    yield Figure(f"POST /v1/tasks at {CONNECTIONS} connections", rate[2], "/s", reference=bare, ratio=rate[2] / rate[0])
    bare = f"a bare POST of Starlette: {cost[1]:.0f} µs"
    yield Figure("POST /v1/tasks: CPU of the gateway", cost[3], "µs", reference=bare, ratio=cost[1] / cost[3])
    beside = f"AsyncEngine.push_iter: {lines[1]:.1f} µs; aim: ≥ 0.4"
    yield Figure("a line of /v1/tasks:batch: CPU", lines[0], "µs", reference=beside, ratio=lines[1] / lines[0])
    stand.clear()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _post(host: str, port: int, path: str, count: int) -> None:
    request = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY

    async def client(own: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(own):
            writer.write(request)
            await _answered(reader, b" 201 ")
        writer.close()

    await asyncio.gather(*(client(count // CONNECTIONS) for _ in range(CONNECTIONS)))


async def _lines(host: str, port: int, batches: int) -> None:
    body = (BODY + b"\n") * LINES
    head = (
        f"POST /v1/tasks:batch HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/x-ndjson\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    reader, writer = await asyncio.open_connection(host, port)
    for _ in range(batches):
        writer.write(head + body)
        last = (await _answered(reader, b" 200 ")).splitlines()[-1]
        if b'"failed":0' not in last:
            raise RuntimeError(f"a batch ended with {last.decode()}")
    writer.close()


async def _answered(reader: asyncio.StreamReader, status: bytes) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    body = await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
    if status not in head:
        raise RuntimeError(f"the gateway answered {head.decode()}{body.decode()}")
    return body


async def _pushed(url: str, name: str, count: int) -> float:
    """CPU of this process for a task, in µs."""
    async with AsyncEngine(url, name=name) as engine:
        await engine.push({"first": True}, delay=FAR_S)
        before = time.process_time()
        async for _ in engine.push_iter(Task(PAYLOAD, delay=FAR_S) for _ in range(count)):
            pass
        return (time.process_time() - before) / count * 1e6


SUITE = Suite("http", "pushes over HTTP beside a bare POST and push_iter", _measure)
