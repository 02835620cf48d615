"""A ledger of pushes, cancels and reschedules by the outbox, while relays and the server are killed, and the sessions
of the database are ended, at any instant: each command is carried out exactly once. ``SHARDQ_LEDGER=20000`` makes it
long.

So that a second time would show, what was cancelled is pushed anew, and what was rescheduled is rescheduled again, both
past the outbox, as soon as the first time was seen.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
import sqlalchemy as sa

import shardq
from cluster.server import Server
from shardq import Task, outbox
from shardq.errors import ShardqError
from shardq.relay.database import waiting
from tests.support.waiting import wait_until

pytestmark = pytest.mark.ledger

IDS = int(os.environ.get("SHARDQ_LEDGER", "500"))  # of each kind
KILLS = 6 + IDS // 500
RELAYS = 2
SOME = 50  # commands of each kind in a transaction


class Ledger:
    """The ids of each kind, and what became of them."""

    def __init__(self, engine: shardq.Engine, database: sa.Engine, count: int) -> None:
        self._engine, self._database = engine, database
        self.count = count
        self.first, self.second, self.third = (int(time.time()) + hours * 3600.0 for hours in (1, 2, 3))
        self.pushed: list[str] = []
        self.met = Counter[str]()
        self.anew, self.again = set[str](), set[str]()
        self.errors = list[Exception]()  # of the threads
        for topic in ("cancel", "move"):
            engine.push_many(Task(n, id=f"{n}", topic=topic, at=self.first) for n in range(count))

    def store(self) -> None:
        for at in range(0, self.count, SOME):
            with self._database.begin() as connection:
                self.pushed += outbox.push_many(connection, [Task(n, topic="push") for n in range(SOME)])
                for n in range(at, at + SOME):
                    outbox.cancel(connection, f"cancel/{n}")
                    outbox.reschedule(connection, f"move/{n}", at=self.second)

    def handle(self) -> None:
        consumer = self._engine.consumer("push")
        if deliveries := consumer.claim(500, wait=0.1):
            self.met.update(delivery.id for delivery in deliveries)
            consumer.ack(deliveries)

    def look(self) -> None:
        """Pushes anew what was cancelled, reschedules what was rescheduled. What has failed half-way shows later."""
        there = self.due("cancel")
        self.anew.update(id for id, due in there.items() if due == round(self.third, 3))
        gone = [id for n in range(self.count) if (id := f"cancel/{n}") not in there]
        assert self.anew.isdisjoint(gone), "cancelled once more"
        self._engine.push_many(Task(1, id=id.partition("/")[2], topic="cancel", at=self.third) for id in gone)
        self.anew.update(gone)
        there = self.due("move")
        self.again.update(id for id, due in there.items() if due == round(self.third, 3))
        for id, due in there.items():
            if due == round(self.second, 3):
                assert id not in self.again, "rescheduled once more"
                self._engine.reschedule(id, at=self.third)
                self.again.add(id)

    def due(self, topic: str) -> dict[str, float]:
        found, cursor = dict[str, float](), None
        while True:
            page = self._engine.tasks(topic, limit=1000, cursor=cursor)
            found.update((task.id, round(task.due.timestamp(), 3)) for task in page if task.due)
            if (cursor := page.cursor) is None:
                return found

    @property
    def is_done(self) -> bool:
        if self.errors:
            raise self.errors[0]
        return len(self.anew) == len(self.again) == self.count <= self.met.total() and not self._waiting

    @property
    def _waiting(self) -> int:
        try:
            return waiting(self._database, outbox.default_outbox).rows
        except sa.exc.OperationalError:  # its session was ended, too
            return 1

    def check(self) -> None:
        assert self.met == Counter(self.pushed), "each push ran once"
        wanted = {f"{n}": round(self.third, 3) for n in range(self.count)}
        for topic in ("cancel", "move"):
            assert self.due(topic) == {f"{topic}/{n}": due for n, due in wanted.items()}, "each once"


@contextmanager
def _working(ledger: Ledger) -> Iterator[None]:
    """Handles, and looks, in a thread each; also while the server is away for a moment."""
    stop = threading.Event()

    def go_on(step: str) -> None:
        try:
            while not stop.is_set():
                with suppress(ShardqError):
                    getattr(ledger, step)()
        except Exception as exc:  # noqa: BLE001  the test tells
            ledger.errors.append(exc)

    threads = [threading.Thread(target=go_on, args=(step,)) for step in ("handle", "look")]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _keep(ledger: Ledger, command: list[str], stack: ExitStack, kills: int, harm: list[object]) -> None:
    """Kills a relay, or does other harm, after random pauses, and starts another, until all is done."""
    relays = [_started(stack, command) for _ in range(RELAYS)]
    for _ in range(kills):
        pause = random.uniform(0.3, 6)  # a relay takes some seconds to start
        with suppress(AssertionError):
            wait_until(lambda: ledger.is_done, "all is done", timeout=pause)
            break
        victim = random.choice([*relays, *harm])
        if isinstance(victim, subprocess.Popen):
            victim.kill()
            victim.wait()
            relays[relays.index(victim)] = _started(stack, command)
        else:
            assert callable(victim)
            victim()
    wait_until(lambda: ledger.is_done, "all is done", timeout=600)


def _started(stack: ExitStack, command: list[str]) -> subprocess.Popen[bytes]:
    relay = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(relay.wait)
    stack.callback(relay.kill)
    return relay


def _command(database: sa.Engine, url: str, name: str) -> list[str]:
    at = database.url.render_as_string(hide_password=False)
    return [sys.executable, "-m", "shardq", "outbox", "run", "--database", at, "--url", url, "--name", name]


@pytest.mark.timeout(1800)
@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_relays_servers_and_databases_that_are_killed(own_server: Server, database: sa.Engine, name: str) -> None:
    own_server.ask("CONFIG", "SET", "appendfsync", "always")  # so that what is done past the outbox stays, too

    def kill_server() -> None:
        own_server.kill()
        own_server.restart()

    def cut_off() -> None:
        """Ends all sessions, as a database does that fails over."""
        with closing(database.connect()) as connection:
            connection.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )

    with shardq.Engine(own_server.url, name=name, shards=4, timeout=10) as engine, ExitStack() as stack:
        engine.start()
        ledger = Ledger(engine, database, IDS)
        ledger.store()
        with _working(ledger):
            _keep(ledger, _command(database, own_server.url, name), stack, KILLS, [kill_server, cut_off])
        ledger.check()
