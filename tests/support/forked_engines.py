"""Engines that go through a fork: ``python -m tests.support.forked_engines CASE URL NAME``. Says OK, or what was wrong.

It is a process of its own, as a test runner should not fork with all its threads.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from shardq import AsyncEngine, Delivery, Engine, Task
from shardq.core.collector import uncollected
from shardq.core.locks import SignalSafeEvent
from shardq.errors import EngineClosed
from shardq.features import embedded
from tests.support.buffers import together
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until
from tests.support.workers import say

STUCK_S = 90.0
"""The time after which a process that hangs ends; a child shows where, before."""

MANY = 500


class Child:
    """A fork of this process that does some work."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._pid = os.fork()
        if self._pid:
            return
        code = 1
        try:
            faulthandler.dump_traceback_later(STUCK_S - 10.0, exit=True)
            work()
            code = 0
        except BaseException:  # noqa: BLE001  whatever it is, the test shows it, and the child goes no further
            say(traceback.format_exc().replace("\n", " | "))
        os._exit(code)

    def wait(self) -> None:
        _, status = os.waitpid(self._pid, 0)
        assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("shardq")]


def the_parents() -> Any:
    """The errors of objects that only the parent may use."""
    return pytest.raises(EngineClosed, match="before a fork")


# ---- an engine, and what it gave out


def engine_case(url: str, name: str) -> None:
    engine = Engine(url, name=name, shards=4, timeout=10.0)
    engine.start()
    engine.push("x", delay=FAR_S, id="one")
    consumer, growth, worker = engine.consumer("parent"), engine.resize(dry_run=True), engine.worker()
    assert consumer.claim(1, wait=0.01) == []
    many = [Task(n, delay=FAR_S) for n in range(MANY)]

    @worker.on("worked")
    def work(delivery: Delivery) -> None:
        assert delivery.payload == "of the child"
        worker.stop()

    def child() -> None:
        assert threads() == []
        engine.push("x", delay=FAR_S)
        assert state_of(engine, "one") == "scheduled"
        assert threads() == [], "no pollers before the child asks for them"
        engine.push_many(many)
        for order in (consumer.claim, lambda: consumer.claim(1, wait=1.0), growth.progress):
            with the_parents():
                order()
        assert threads() == []
        engine.start()
        wait_until(lambda: len(engine.stats().dispatchers) == 2, "the child is another member")
        engine.push("of the child", topic="child")
        own = engine.consumer("child")
        (delivery,) = claim(own, 1)
        assert delivery.payload == "of the child"
        own.ack(delivery)
        engine.push("of the child", topic="worked")
        worker.run()
        assert engine.resize(6).wait(60.0)
        assert threads().count("shardq-migrator") == 1
        engine.close()
        with pytest.raises(EngineClosed, match="closed: make another"):
            engine.push("x")

    forked = Child(child)
    engine.push_many(many)
    forked.wait()
    # the parent goes on as if nothing had happened
    engine.push("of the parent", topic="parent")
    (delivery,) = claim(consumer, 1)
    assert delivery.payload == "of the parent"
    wait_until(lambda: engine.health().ok, "every poller of the parent is well")
    assert engine.stats().scheduled == 2 + 2 * MANY
    assert growth.done()
    engine.close()


# ---- locks that other threads of the parent held


def locks() -> list[Any]:
    """Returns every lock of the library's objects, those inside of conditions and events too."""
    found: dict[int, Any] = {}
    kinds = type(threading.Lock()), type(threading.RLock())
    for one in gc.get_objects():
        # A SignalSafeEvent has one that nobody waits for: it is what was set.
        if type(one).__module__.partition(".")[0] != "shardq" or isinstance(one, SignalSafeEvent):
            continue
        referents = gc.get_referents(one)
        for value in [*referents, *(each for of in referents if type(of) is dict for each in of.values())]:
            # an event has a condition, and that has a lock
            condition = getattr(value, "_cond", value)
            lock = getattr(condition, "_lock", value) if isinstance(condition, threading.Condition) else value
            if isinstance(lock, kinds):
                found[id(lock)] = lock
    return list(found.values())


@contextmanager
def all_held() -> Iterator[None]:
    """Lets another thread hold every lock of the library during the block, and pause the garbage collector."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        while not held.is_set():
            taken = []
            for lock in locks():
                if not lock.acquire(timeout=1.0):
                    break  # whoever holds it waits for one that we hold
                taken.append(lock)
            else:
                with uncollected():
                    held.set()
                    over.wait()
            for lock in taken:
                lock.release()

    thread = threading.Thread(target=hold, name="holder")
    thread.start()
    held.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def locked_case(url: str, name: str) -> None:
    engine = Engine(url, name=name, shards=4, timeout=10.0)
    engine.start()
    buffer = engine.buffered()
    buffer.push("x", delay=FAR_S).result()
    consumer = engine.consumer()
    assert consumer.claim(1, wait=0.01) == []
    stream: Any = engine.push_iter(Task(n, delay=FAR_S) for n in range(100_000))
    next(stream)
    assert len(locks()) > 20

    def child() -> None:
        assert gc.isenabled()
        engine.push("x", delay=FAR_S)
        assert buffer.push("x", delay=FAR_S).result(30.0).outcome == "pushed"
        buffer.close()
        with the_parents():
            consumer.claim()
        stream.close()
        engine.start()
        engine.push("of the child", topic="child")
        (delivery,) = engine.consumer("child").claim(1, wait=30.0)
        assert delivery.payload == "of the child"
        engine.close()

    with all_held():
        forked = Child(child)
    forked.wait()
    stream.close()
    buffer.push("x", delay=FAR_S).result()
    buffer.close()
    engine.close()


# ---- a buffer


def buffer_case(url: str, name: str) -> None:
    engine = Engine(url, name=name, shards=4, timeout=10.0)
    buffer = engine.buffered()

    def child() -> None:
        with pytest.raises(EngineClosed, match="the parent process"):
            pending.result(30.0)
        buffer.flush()
        own = buffer.push("of the child", delay=FAR_S, id="child")
        buffer.close()
        assert own.result(0.0).outcome == "pushed"
        assert state_of(engine, "parent") == "gone", "it is the parent's to send"
        engine.close()

    with together(buffer):
        pending = buffer.push("of the parent", delay=FAR_S, id="parent")
        Child(child).wait()
    buffer.close()
    assert pending.result(0.0).outcome == "pushed"
    assert state_of(engine, "child") == "scheduled"
    engine.close()


# ---- an asyncio engine


def asyncio_case(url: str, name: str) -> None:
    loop = asyncio.new_event_loop()
    engine = AsyncEngine(url, name=name, shards=4, timeout=10.0)

    async def begin() -> Any:
        await engine.start()
        await engine.push("x", delay=FAR_S)
        consumer = engine.consumer("parent")
        assert await consumer.claim(1, wait=0.01) == []
        return consumer

    consumer = loop.run_until_complete(begin())

    async def child() -> None:
        await engine.push("x", delay=FAR_S)
        wait_until(lambda: threads() == [], "no pollers before the child asks for them")
        with the_parents():
            await consumer.claim()
        with the_parents():
            await consumer.claim(1, wait=1.0)
        await engine.start()
        deadline = time.monotonic() + STUCK_S / 2
        while len((await engine.stats()).dispatchers) != 2:
            assert time.monotonic() < deadline, "the child is another member"
            await asyncio.sleep(0.01)
        await engine.close()

    async def goes_on() -> None:
        await engine.push("of the parent", topic="parent")
        (delivery,) = await consumer.claim(1, wait=30.0)
        assert delivery.payload == "of the parent"
        assert (await engine.stats()).scheduled == 2
        await engine.close()

    Child(lambda: asyncio.run(child())).wait()
    loop.run_until_complete(goes_on())
    loop.close()


def uvloop_case(url: str, name: str) -> None:
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio_case(url, name)


# ---- an embedded server


def embedded_case(url: str, name: str) -> None:
    def ended() -> bool:
        with embedded.enter(Path(urlsplit(url).path)) as use:
            return use.started

    # the child is the first to leave
    engine = Engine(url, name=name, shards=2)
    engine.push("x", delay=FAR_S)

    def child() -> None:
        engine.push("x", delay=FAR_S)
        engine.close()

    Child(child).wait()
    assert engine.stats().scheduled == 2
    Child(engine.close).wait()
    assert engine.stats().scheduled == 2
    engine.close()
    assert ended()

    # the child is the last one
    engine.open()
    reader, writer = os.pipe()

    def outlives() -> None:
        os.close(writer)
        os.read(reader, 1)
        assert engine.stats().scheduled == 2
        engine.close()

    forked = Child(outlives)
    engine.close()
    assert not ended()
    os.close(writer)
    forked.wait()
    os.close(reader)
    assert ended()


CASES = {
    "engine": engine_case,
    "locked": locked_case,
    "buffer": buffer_case,
    "asyncio": asyncio_case,
    "uvloop": uvloop_case,
    "embedded": embedded_case,
}

if __name__ == "__main__":
    signal.alarm(int(STUCK_S))  # which a child does not inherit
    CASES[sys.argv[1]](*sys.argv[2:])
    say("OK")
