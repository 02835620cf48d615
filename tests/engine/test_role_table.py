"""The table of ``guide/security.md``: each role tries each thing, and the page says what happened. Run it with
``--server redis7``, too: the rules of both are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import shardq
from cluster.server import Server
from shardq import Engine
from shardq.cli.acl import rules
from shardq.core.layout.keys import control_keys
from shardq.core.roles import ROLES
from shardq.errors import AccessDenied
from tests.support.states import FAR_S, claim, ready_of
from tests.support.waiting import wait_until

PAGE = Path(shardq.__file__).parent / "guide" / "security.md"

SHARDS = 2


class Tried:
    """A server with an engine, and a user of each role."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.admin = Engine(server.url, name="table", shards=SHARDS)
        self.admin.start()
        self.admin.configure(done_age=3600)  # then settlements and cancels write further keys
        self._engines = [self.admin]
        self.of_role = {role: self.engine(role, "table").open() for role in ROLES}
        self._made = 0

    def engine(self, role: str, name: str) -> Engine:
        self.server.ask("ACL", "SETUSER", role, "nopass", *rules([role], name=name))
        engine = Engine(f"redis://{role}:x@{self.server.address}", name=name, shards=1, timeout=5.0)
        self._engines.append(engine)
        return engine

    def pushed(self, *, delay: float = FAR_S, topic: str = "") -> str:
        return self.admin.push({"n": 1}, delay=delay, topic=topic)

    def creates(self, role: str, _: Engine) -> None:
        self._made += 1
        name = f"new{self._made}"
        try:
            self.engine(role, name).open()
        finally:
            self.server.ask("ACL", "SETUSER", role, "nopass", *rules([role], name="table"))

    def ready(self) -> str:
        """The topic of a task that is ready, a new one."""
        topic = f"of-{self.pushed()}"
        self.pushed(delay=0, topic=topic)
        wait_until(lambda: ready_of(self.admin, topic) == 1, "it is ready")
        return topic

    def held(self) -> list[shardq.Delivery]:
        return claim(self.admin.consumer(self.ready()), 1)

    def dead(self) -> str:
        (held,) = self.held()
        self.admin.consumer(held.topic).bury(held, "of no use")
        return str(held.id)

    def exported(self) -> list[bytes]:
        id = self.pushed()
        lines = [line for line in self.admin.export() if f'"{id}"'.encode() in line]
        self.admin.cancel(id)
        return lines

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


@pytest.fixture
def tried(server_binary: Path) -> Iterator[Tried]:
    with Server(server_binary) as server:
        tried = Tried(server)
        yield tried
        tried.close()


def seen(found: object) -> None:
    assert found


Try = Callable[[Tried, str, Engine], object]

ROWS: dict[str, Try] = {
    "create the engine": lambda tried, role, engine: tried.creates(role, engine),
    "push": lambda tried, role, engine: engine.push("x", delay=FAR_S),
    "read a task and its payload, by id": lambda tried, role, engine: reads(tried, engine),
    "list and search tasks": lambda tried, role, engine: list(engine.tasks()),
    "cancel any task, by id": lambda tried, role, engine: seen(engine.cancel(tried.pushed())),
    "claim, of any topic": lambda tried, role, engine: seen(engine.consumer(tried.ready()).claim(1)),
    "settle others' leases": lambda tried, role, engine: engine.consumer("held").ack(tried.held()),
    "declare and remove any schedule": lambda tried, role, engine: scheduled(engine, role),
    "requeue dead tasks": lambda tried, role, engine: seen(engine.requeue(tried.dead())),
    "purge": lambda tried, role, engine: engine.purge("purged"),
    "pause and resume": lambda tried, role, engine: pauses(engine),
    "route": lambda tried, role, engine: routes(engine),
    "limit": lambda tried, role, engine: limits(engine),
    "configure": lambda tried, role, engine: engine.configure(dead_count=10**6 + len(role)),
    "resize": lambda tried, role, engine: engine.resize(SHARDS + len(role)),
    "export": lambda tried, role, engine: list(engine.export()),
    "restore an export": lambda tried, role, engine: seen(engine.restore(tried.exported())),
    "read metrics": lambda tried, role, engine: measured(engine),
}  # fmt: skip


def reads(tried: Tried, engine: Engine) -> None:
    seen(engine.get(tried.pushed()))
    cancelled = tried.pushed()
    tried.admin.cancel(cancelled)
    seen(engine.get(cancelled, ended=True))


def pauses(engine: Engine) -> None:
    engine.pause("p")
    engine.resume("p")


def routes(engine: Engine) -> None:
    engine.forward("r", to="list")
    engine.forward("r", to=None)


def limits(engine: Engine) -> None:
    engine.limit("l", rate=5)
    engine.limit("l", None)


def measured(engine: Engine) -> None:
    for shard in engine.stats().shards:
        if shard.error:
            raise AccessDenied(shard.error)


def scheduled(engine: Engine, role: str) -> None:
    engine.every(f"of-{role}", interval=FAR_S)
    engine.schedule(f"of-{role}").remove()


def may(tried: Tried, role: str, what: Try) -> str:
    told = ""
    try:
        what(tried, role, tried.of_role[role])
    except AccessDenied as exc:
        told = str(exc)
        assert re.search(r"users? of the role \w+", told), told
    return "–" if told else "yes"


@pytest.mark.timeout(120)
def test_the_page_says_what_each_role_can_do(tried: Tried) -> None:
    lines = [f"| | {' | '.join(f'`{role}`' for role in ROLES)} |", "| --- |" + " --- |" * len(ROLES)]
    for name, what in ROWS.items():
        lines.append(f"| {name} | {' | '.join(may(tried, role, what) for role in ROLES)} |")
    table = "\n".join(lines)
    assert table in PAGE.read_text(encoding="utf-8"), table


NO_CHANGES: dict[str, Callable[[Engine], object]] = {
    "pause": lambda engine: engine.pause("paused"),
    "resume": lambda engine: engine.resume("going"),
    "forward": lambda engine: engine.forward("going", to=None),
    "limit": lambda engine: engine.limit("going", None),
    "configure": lambda engine: engine.configure(max_attempts=25),
    "resize": lambda engine: engine.resize(SHARDS),
}


@pytest.mark.parametrize("role", ["producer", "worker", "viewer"])
def test_a_change_that_changes_nothing_is_refused_too(tried: Tried, role: str) -> None:
    tried.admin.pause("paused")
    epoch = tried.admin.topology.epoch
    for what in NO_CHANGES.values():
        what(tried.of_role["operator"])
        with pytest.raises(AccessDenied, match="users of the role dispatcher or operator"):
            what(tried.of_role[role])
    assert tried.admin.topology.epoch == epoch


@pytest.mark.parametrize("role", ["producer", "worker", "viewer"])
def test_the_server_refuses_what_goes_past_shardq(tried: Tried, role: str) -> None:
    topology = control_keys("table").topology
    client = redis.Redis(port=tried.server.port, username=role, password="x")
    try:
        for words in (
            ("HSET", topology, "shards", "9"),
            ("HDEL", control_keys("table").settings, "going"),
            ("EVAL", "return redis.call('HSET', KEYS[1], 'shards', '9')", 1, topology),
        ):
            with pytest.raises(redis.ResponseError, match=r"(?i)permission|ACL failure|can't access|can't run"):
                client.execute_command(*words)  # type: ignore[no-untyped-call]
    finally:
        client.close()
