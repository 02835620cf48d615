"""A network cut in two under Sentinel, and programs that reach both sides: a master was replaced, and goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest

from cluster.sentinels import Sentinels
from cluster.server import Server
from shardq import AsyncEngine, Engine, ShardqError, Task, outbox
from shardq.engine.findings import TABLE, reds
from shardq.outbox import OutboxRelay
from shardq.relay.database import open_database
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

LEFT_S = 5.0
"""By then a master that the majority has replaced gets nothing more."""

LONG_S = 9.0
"""For so long after the promotion all go on."""

EVERY_S = 0.05

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def service(server_binary: Path) -> Iterator[Sentinels]:
    with Sentinels(server_binary, password="pw9", sentinel_password="watch9") as service:
        yield service


class Program:
    """A thread that repeats one call, and notes when each answer came."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.answered: list[tuple[float, object]] = []
        self.errors: list[str] = []
        self._end = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Program:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(EVERY_S):
            try:
                answer = self.call()
            except ShardqError as exc:
                self.errors.append(f"{type(exc).__name__}: {exc}")
            else:
                self.answered.append((time.monotonic(), answer))


class Loop:
    """An AsyncEngine for other threads."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)
        self._thread.start()

    def push(self) -> str:
        return asyncio.run_coroutine_threadsafe(self._engine.push("x", delay=FAR_S), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def calls_at(server: Server) -> int:
    """So many scripts have run there."""
    stats = server.ask("INFO", "commandstats")
    return sum(int(stats.get(f"cmdstat_{verb}", {}).get("calls", 0)) for verb in ("evalsha", "eval"))


@pytest.mark.parametrize("minority", [(), (0,), (1,), (2,)])
def test_all_leave_the_master_that_was_replaced(
    service: Sentinels, name: str, minority: tuple[int, ...], tmp_path: Path
) -> None:
    """Programs that push, push on asyncio, relay rows, cancel and claim, each with an engine of its own."""
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(service.url, name=name, shards=4, timeout=8)) for _ in range(4)]
        pusher, relaying, canceller, claimer = engines
        left = pusher.push_many([Task(n, delay=FAR_S) for n in range(2000)])
        loop = Loop(AsyncEngine(service.url, name=name, timeout=8))
        stack.callback(loop.close)
        database = open_database(f"sqlite:///{tmp_path}/rows.db")
        stack.callback(database.dispose)
        outbox.create(database)
        relay = OutboxRelay(relaying, database)
        stack.callback(relay.close)

        def write_and_relay() -> str:
            with database.begin() as connection:
                id = outbox.push(connection, "x", delay=FAR_S)
            relay.step()
            return id

        programs = {
            "push": Program(lambda: pusher.push("x", delay=FAR_S)),
            "push on asyncio": Program(loop.push),
            "relay": Program(write_and_relay),
            "cancel": Program(lambda: canceller.cancel(left.pop())),
            "claim": Program(lambda: claimer.consumer("work").claim(1, wait=0.02)),
        }
        for program in programs.values():
            stack.enter_context(program)
        wait_until(lambda: all(program.answered for program in programs.values()), "all are at work")
        service.split(minority)
        service.wait_split(minority)
        promoted = time.monotonic()
        time.sleep(LEFT_S)
        before = calls_at(service.master)
        time.sleep(LONG_S - LEFT_S)
        assert calls_at(service.master) == before, "somebody still calls the old master"
        at_last = {what: program.answered[-1][0] - promoted for what, program in programs.items()}
        assert min(at_last.values()) > LEFT_S, (at_last, {what: p.errors[-3:] for what, p in programs.items()})
        with Engine(service.url, name=name, timeout=8) as newcomer:
            for what in ("push", "push on asyncio", "relay"):
                late = [str(id) for at, id in programs[what].answered if at > promoted + LEFT_S]
                assert len(late) > 3
                assert all(newcomer.get(id) is not None for id in late), what
            told = red_of_sentinels(newcomer)
            assert any(f"{service.master.address} says that it is a master" in each for each in told), told
            assert any("the sentinels disagree" in each for each in told) == bool(minority), told


def red_of_sentinels(engine: Engine) -> list[str]:
    return [each.text for each in reds(engine.health().findings) if TABLE[each.name].check == "sentinels"]


def test_health_of_sentinels(service: Sentinels, name: str) -> None:
    with Engine(service.url, name=name, shards=2, timeout=8) as engine:
        engine.push("x", delay=FAR_S)
        assert red_of_sentinels(engine) == []
        assert not [each for each in engine.health().warnings if "sentinel" in each]
        service.sentinels[0].kill()
        assert red_of_sentinels(engine) == []
        warned = [each for each in engine.health().warnings if "sentinel" in each]
        assert len(warned) == 1
        assert service.sentinels[0].address in warned[0]
        service.sentinels[1].pause()
        (reason,) = red_of_sentinels(engine)
        assert "1 of the 3 sentinels" in reason
        with Engine(service.url_of([2]), name=name, timeout=8) as other:
            assert [each for each in other.health().warnings if "the URL names 1 of the service's 3 sentinels" in each]
