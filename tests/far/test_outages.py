"""A database that is frozen, dead, or full of locks, and Redis that is: who is told, and what goes on."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cluster.postgres import Postgres
from cluster.server import Server
from shardq import Engine, Outcome, PushError, ServerFault, ShardqError, Task, Unanswered, Unavailable
from shardq.errors import AccessDenied, ReadOnly
from shardq.features.far import loader
from shardq.features.far import statements as sql
from shardq.relay.sending import is_refusal
from tests.support.findings import red
from tests.support.refusing import Way, plain, refuse
from tests.support.states import counted
from tests.support.waiting import wait_until

FAR_S = 30 * 86_400.0
TIMEOUT_S = 1.5

ON_ONE_SERVER = pytest.mark.parametrize("url", ["single"], indirect=True)
"""It is the database that breaks."""

SLACK_S = 5.0
"""A busy machine stands still for so long, and no longer; a call without a deadline would wait for ever."""


@pytest.fixture(scope="module")
def breakable() -> Iterator[Postgres]:
    """A PostgreSQL that the tests here break."""
    with Postgres() as server:
        yield server


@pytest.fixture
def database(breakable: Postgres) -> str:
    return breakable.make_database(f"d{uuid.uuid4().hex}")


@pytest.fixture
def engine(url: str, name: str, database: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=2, far=database, timeout=TIMEOUT_S) as engine:
        engine.push("opened", delay=FAR_S)
        yield engine


def goes_on(engine: Engine, far: str) -> None:
    """What needs no database goes on, and what does ends in time."""
    began = time.monotonic()
    near = engine.push("near", delay=60)
    assert engine.cancel(near) is Outcome.CANCELLED
    assert time.monotonic() - began < TIMEOUT_S + SLACK_S
    for call in (lambda: engine.push("far", delay=FAR_S), lambda: engine.cancel(far), lambda: engine.get(far)):
        began = time.monotonic()
        with pytest.raises((Unavailable, Unanswered), match="the far store"):
            call()
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S
    with pytest.raises(PushError) as caught:
        engine.push_many([Task("near", delay=60), Task("far", delay=FAR_S)])
    assert len(caught.value.stored) == 1
    began = time.monotonic()
    seen = engine.stats().far
    assert time.monotonic() - began < 3 + SLACK_S
    assert seen is not None
    assert seen.tasks is None
    assert seen.problems
    assert "far" in red(engine.health())


@pytest.mark.slow
@ON_ONE_SERVER
def test_a_frozen_database(engine: Engine, breakable: Postgres) -> None:
    far = engine.push("far", delay=FAR_S)
    with breakable.stopped():
        goes_on(engine, far)
    assert engine.cancel(far) in (Outcome.CANCELLED, Outcome.GONE)
    wait_until(lambda: "far" not in red(engine.health()), "all is well again")


@pytest.mark.slow
@ON_ONE_SERVER
def test_a_dead_database(engine: Engine, breakable: Postgres) -> None:
    far = engine.push("far", delay=FAR_S)
    breakable.kill()
    try:
        goes_on(engine, far)
    finally:
        breakable.start()
    info = engine.get(far)
    assert info is not None
    assert engine.cancel(far) is Outcome.CANCELLED


@pytest.mark.slow
@ON_ONE_SERVER
def test_a_database_that_comes_back_in_time(engine: Engine, breakable: Postgres, monkeypatch: Any) -> None:
    """A restart is waited for."""
    breakable.kill()
    breakable.start()
    engine.push("far", delay=FAR_S)
    engine.push_many([Task(n, delay=FAR_S) for n in range(10)])


@pytest.mark.slow
@ON_ONE_SERVER
def test_a_table_that_another_program_has_locked(engine: Engine, database: str) -> None:
    far = engine.push("far", delay=FAR_S)
    with psycopg.connect(plain(database)) as other:
        other.execute(f"LOCK TABLE {sql.TABLE} IN ACCESS EXCLUSIVE MODE".encode())
        goes_on(engine, far)
        other.rollback()
    assert engine.get(far) is None or engine.cancel(far) is Outcome.CANCELLED


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cancel", "reschedule", "requeue", "get", "push_many", "push_iter", "forecast"])
def test_a_command_has_its_timeout_once(own_server: Server, name: str, database: str, way: str) -> None:
    """The table answers when most of the time is over, or Redis does; then the other one answers nothing."""
    timeout_s = 2.0
    with (
        Engine(own_server.url, name=name, shards=2, far=database, timeout=timeout_s) as engine,
        psycopg.connect(plain(database)) as other,
        ThreadPoolExecutor() as threads,
    ):
        gone = engine.push("gone", delay=FAR_S)
        engine.cancel(gone)
        both = [Task("near", delay=60), Task("far", delay=FAR_S)]
        calls: dict[str, Callable[[], object]] = {
            "cancel": lambda: engine.cancel(gone),
            "reschedule": lambda: engine.reschedule(gone, delay=60),
            "requeue": lambda: engine.requeue(gone),
            "get": lambda: engine.get(gone),
            "push_many": lambda: engine.push_many(both),
            "push_iter": lambda: list(engine.push_iter(both)),
            "forecast": engine.forecast,
        }
        other.execute(f"LOCK TABLE {sql.TABLE} IN ACCESS EXCLUSIVE MODE".encode())
        own_server.pause()
        began = time.monotonic()
        command = threads.submit(calls[way])
        time.sleep((0.7 if way == "forecast" else 0.9) * timeout_s)
        if way == "forecast":  # Redis first
            own_server.resume()
        elif not way.startswith("push_"):  # what is many fails in both
            other.rollback()
        error = command.exception()
        took_s = time.monotonic() - began
        own_server.resume()
        other.rollback()
        assert isinstance(error, ShardqError), error
        assert took_s < 1.5 * timeout_s


def test_redis_away(own_server: Server, name: str, database: str) -> None:
    """What is far goes on."""
    with Engine(own_server.url, name=name, shards=2, far=database, timeout=TIMEOUT_S) as engine:
        id = engine.push("far", delay=FAR_S)
        own_server.kill()
        try:
            other = engine.push("far", delay=FAR_S)
            assert engine.reschedule(id, delay=2 * FAR_S) is Outcome.MOVED
            assert engine.get(other) is not None
            assert engine.cancel(other) is Outcome.CANCELLED
            # committed as near, and moved when Redis is back
            assert engine.reschedule(id, delay=0) is Outcome.MOVED
        finally:
            own_server.start()
        engine.start()
        [delivery] = engine.consumer().claim(1, wait=30)
        assert delivery.id == id
        engine.consumer().ack(delivery)


def test_a_full_server(own_server: Server, name: str, database: str) -> None:
    """It takes nothing: rows stay, and are told."""
    with Engine(own_server.url, name=name, shards=2, far=database, timeout=TIMEOUT_S) as engine:
        id = engine.push("far", delay=FAR_S)
        engine.start()
        own_server.ask("CONFIG", "SET", "maxmemory", "1")
        assert engine.reschedule(id, delay=0) is Outcome.MOVED
        wait_until(
            lambda: [text for text in engine.health().reasons if "take nothing from the far store" in text],
            "it is told",
        )
        own_server.ask("CONFIG", "SET", "maxmemory", "0")
        [delivery] = engine.consumer().claim(1, wait=30)
        assert delivery.id == id
        engine.consumer().ack(delivery)


@pytest.mark.slow
def test_a_pooler_s_connections(engine: Engine, database: str) -> None:
    """Each statement may go to another connection: nothing is prepared, and nothing set."""
    engine.push_many([Task(n, delay=FAR_S) for n in range(20)])
    for n in range(20):
        engine.cancel(engine.push(n, delay=FAR_S))
    with psycopg.connect(plain(database)) as other:
        [(prepared,)] = other.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()
        settings = other.execute("SELECT name FROM pg_settings WHERE source = 'session'").fetchall()
    assert prepared == 0
    assert not settings


# ---- replicas


def test_what_a_command_moves_waits_for_replicas(
    own_server: Server, replica: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover takes what the replica has not heard of, and a loader brings it again."""
    monkeypatch.setattr(loader, "TOLD_S", 0.5)
    database = str(tmp_path / "far.db")
    with Engine(own_server.url, name=name, shards=2, far=database, timeout=3) as engine:
        id = engine.push("far", delay=FAR_S)
        wait_until(lambda: replica.ask("DBSIZE") == own_server.ask("DBSIZE"), "the replica has the engine")
        replica.pause()
        assert engine.reschedule(id, delay=60) is Outcome.MOVED
        assert counted(engine).scheduled == 1
        assert engine.stats().far.tasks == 0, "it is Redis' task"  # type: ignore[union-attr]
        engine.start()
        wait_until(lambda: "far" in red(engine.health()), "it is told")
        own_server.kill()
    replica.resume()
    replica.ask("REPLICAOF", "NO", "ONE")
    with Engine(replica.url, name=name, far=database) as engine:
        engine.start()
        wait_until(lambda: engine.get(id) is not None, "it is moved again")
        assert counted(engine).scheduled == 1


WAYS: dict[tuple[str, Way], type[ServerFault]] = {
    ("postgresql", "full"): ReadOnly,
    ("postgresql", "forbidden"): AccessDenied,
    ("postgresql", "read-only"): ReadOnly,
    ("postgresql", "no table"): Unavailable,
    ("sqlite", "full"): ReadOnly,
    ("sqlite", "read-only"): ReadOnly,
}


@pytest.mark.parametrize(("kind", "how"), WAYS)
def test_a_database_that_refuses_every_row(
    request: pytest.FixtureRequest, url: str, name: str, tmp_path: Path, monkeypatch: Any, kind: str, how: Way
) -> None:
    """What it says is not about a task: the outbox would put its row aside, where it has to wait."""
    far = str(tmp_path / "far.db") if kind == "sqlite" else request.getfixturevalue("database")
    with Engine(url, name=name, shards=2, far=far, timeout=TIMEOUT_S) as engine:
        engine.push("opened", delay=FAR_S)
        refuse(engine, far, how, monkeypatch)
        payload = "x" * 100_000  # more than a page has room for
        with pytest.raises(WAYS[kind, how], match="the far store says") as caught:
            engine.push(payload, delay=FAR_S)
        assert not is_refusal(caught.value)
        with pytest.raises(PushError) as several:
            engine.push_many([Task(payload, delay=FAR_S), Task("near", delay=60)])
        assert [type(error) for error in several.value.failed.values()] == [caught.type]
        assert engine.get(engine.push("near", delay=60)) is not None


@pytest.mark.slow
def test_a_row_that_is_refused_for_itself(url: str, name: str, database: str) -> None:
    with Engine(url, name=name, shards=2, far=database, timeout=TIMEOUT_S) as engine:
        engine.push("opened", delay=FAR_S)
        with psycopg.connect(plain(database), autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {sql.TABLE} ADD CHECK (id NOT LIKE 'bad/%')")
        with pytest.raises(ServerFault, match="the far store says") as caught:
            engine.push("x", topic="bad", delay=FAR_S)
        assert is_refusal(caught.value)
        assert engine.push("x", topic="good", delay=FAR_S)
