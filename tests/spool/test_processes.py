"""Processes that share a spool, fork with it, or leave it behind."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import AsyncEngine, Engine, Task
from shardq.features.embedded import locks
from shardq.features.spool.spool import lock_of
from tests.spool.conftest import Make, direct, drained, seen
from tests.support.engines import SHARDS
from tests.support.states import FAR_S, state_of
from tests.support.waiting import wait_until

LEFT = """
import os, signal, sys
import shardq
url, name, path = sys.argv[1:]
engine = shardq.Engine(url, name=name, shards=4, spool=path, timeout=0.5, connect_timeout=0.5)
for n in range(3):
    engine.push("left", id=f"{n}", on_conflict="replace", delay=3600)
engine.cancel("2")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_first(make: Make, own_server: Server, path: Path, name: str) -> None:
    own_server.kill()
    words = [sys.executable, "-c", LEFT, own_server.url, name, str(path)]
    assert subprocess.run(words, timeout=100).returncode == -signal.SIGKILL
    assert seen(path).waiting == 4
    own_server.start()
    engine = make()
    engine.push("new", id="1", on_conflict="replace", delay=FAR_S)
    drained(path)
    payloads = {}
    for id in ("0", "1", "2"):
        found = engine.get(id)
        payloads[id] = None if found is None else found.payload
    assert payloads == {"0": "left", "1": "new", "2": None}


FORKING = """
import os, sys
import shardq
url, name, path = sys.argv[1:]
engine = shardq.Engine(url, name=name, shards=4, spool=path, timeout=0.5, connect_timeout=0.5)
for n in range(10):
    engine.push("parent", id=f"both-{n}", on_conflict="replace", delay=3600)
pid = os.fork()
who = "parent" if pid else "child"
for n in range(20):
    os.write(1, f"{engine.push(who, delay=3600)} {who}\\n".encode())
if not pid:
    for n in range(10):
        engine.push("child", id=f"both-{n}", on_conflict="replace", delay=3600)
    engine.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
engine.close()
"""


def test_a_forked_child_goes_on_with_the_file(make: Make, own_server: Server, path: Path, name: str) -> None:
    own_server.kill()
    words = [sys.executable, "-c", FORKING, own_server.url, name, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told = dict(line.split() for line in done.stdout.splitlines())
    assert len(told) == 40
    own_server.start()
    engine = make().open()
    drained(path)
    assert {state_of(engine, id) for id in told} == {"scheduled"}
    for n in range(10):
        found = engine.get(f"both-{n}")
        assert found is not None
        assert found.payload == "child"


def test_who_does_not_hold_the_lock_waits_for_its_own_commands(make: Make, own_server: Server, path: Path) -> None:
    """Another process is about to replay, and has not begun."""
    engine = make().open()
    own_server.kill()
    id = engine.push("one", id="one", on_conflict="replace", delay=FAR_S)
    with locks.alone(lock_of(path), deadline=time.monotonic() + 30) as held:
        assert held is not None
        own_server.start()
        for n in range(5):
            assert engine.push(f"{n}", id="one", on_conflict="replace", delay=FAR_S).outcome == "spooled"
        assert engine.cancel("none").value == "spooled"
    drained(path)
    found = engine.get(id)
    assert found is not None
    assert found.payload == "4"


def test_two_engines_of_one_process_share_a_file(make: Make, own_server: Server, path: Path) -> None:
    one, two = make().open(), make().open()
    own_server.kill()
    ids = [engine.push(n, delay=FAR_S) for n in range(20) for engine in (one, two)]
    assert {id.outcome for id in ids} == {"spooled"}
    own_server.start()
    drained(path)
    for engine in (one, two):
        assert direct(engine, delay=FAR_S)
    assert {state_of(one, id) for id in ids} == {"scheduled"}


def test_closing_leaves_the_rest_in_the_file(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    own_server.kill()
    ids = engine.push_many([Task(n, delay=FAR_S) for n in range(100)])
    engine.close()
    assert seen(path).waiting == 100
    own_server.start()
    again = make().open()
    drained(path)
    assert {state_of(again, id) for id in ids} == {"scheduled"}


@pytest.mark.slow
def test_concurrent_pushes_share_a_commit(path: Path) -> None:
    """A thread that stores takes along what others have brought while it waited."""
    engine = Engine("redis://127.0.0.1:1", spool=path, timeout=0.1, connect_timeout=0.1)
    engine.push("first", delay=FAR_S)
    instants = Counter[int]()
    with sqlite3.connect(path, isolation_level=None) as other, ThreadPoolExecutor(50) as threads:
        other.execute("BEGIN IMMEDIATE")
        pushes = [threads.submit(engine.push, n, delay=FAR_S) for n in range(50)]
        wait_until(lambda: len(engine._spool._tickets) >= 49, "the others wait for the first")  # type: ignore[union-attr]
        other.execute("ROLLBACK")
        assert {push.result().outcome for push in pushes} == {"spooled"}
        for [spooled] in other.execute("SELECT spooled FROM command"):
            instants[spooled] += 1
    other.close()
    engine.close()
    assert max(instants.values()) >= 49


def test_no_call_of_the_file_holds_the_event_loop(own_server: Server, path: Path, name: str) -> None:
    """Another process holds the file meanwhile."""

    async def run() -> int:
        async with AsyncEngine(own_server.url, name=name, shards=SHARDS, spool=path, timeout=1.0) as engine:
            await engine.push("here", delay=FAR_S)
            own_server.kill()
            await engine.push("first", delay=FAR_S)
            with sqlite3.connect(path, isolation_level=None) as other:
                other.execute("BEGIN IMMEDIATE")
                push = asyncio.create_task(engine.push("second", delay=FAR_S))
                ticks = 0
                while ticks < 20:
                    await asyncio.sleep(0.01)
                    ticks += 1
                assert not push.done()
                other.execute("ROLLBACK")
            other.close()
            assert (await push).outcome == "spooled"
            return ticks

    assert asyncio.run(run()) == 20


def test_pushes_go_on_through_an_outage_from_many_threads(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    ended = threading.Event()

    def work(number: int) -> list[str]:
        ids: list[str] = []
        while not ended.is_set():
            ids.append(engine.push(f"{number}-{len(ids)}", delay=FAR_S))
            ids += engine.push_many([Task(f"{number}-{len(ids)}-{n}", delay=FAR_S) for n in range(10)])
        return ids

    with ThreadPoolExecutor(8) as threads:
        working = [threads.submit(work, number) for number in range(8)]
        try:
            own_server.kill()
            wait_until(lambda: total(path) >= 100, "the outage is spooled", timeout=60)
            own_server.start()
            # New commands never stop, and yet the outage comes to its end.
            wait_until(lambda: not away(engine), "pushes go to the server again", timeout=60)
        finally:
            ended.set()
        ids = [id for each in working for id in each.result()]
    drained(path)
    assert len(set(ids)) == len(ids)
    wait_until(lambda: engine.stats().scheduled == len(ids), "each is there once")


def away(engine: Engine) -> bool:
    return bool(engine._spool.away)  # type: ignore[union-attr]


def total(path: Path) -> int:
    now = seen(path)
    return int(now.waiting + now.replayed)
