"""The relay moves every committed row once, whatever dies."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

import shardq
from cluster.postgres import Postgres
from cluster.server import Server
from shardq import outbox
from shardq.outbox import OutboxRelay
from tests.support.waiting import wait_until

TASKS = 3000


def _moved(relay: OutboxRelay) -> int:
    """Moves all that waits. Returns how many rows that were."""
    with contextlib.closing(relay):
        while relay.step():
            pass
    return relay.moved


def _fill(database: sa.Engine, count: int = TASKS, **options: object) -> list[str]:
    with database.begin() as connection:
        return outbox.push_many(connection, [shardq.Task(n, **options) for n in range(count)])  # type: ignore[arg-type]


def _left(database: sa.Engine) -> int:
    with database.connect() as connection:
        return connection.execute(sa.select(sa.func.count()).where(outbox.table.c.moved.is_(None))).scalar_one()


def _taken(engine: shardq.Engine, count: int) -> Counter[str]:
    """Claims and acknowledges until so many tasks were met, and nothing is left."""
    consumer, met = engine.consumer(), Counter[str]()

    def all_met() -> bool:
        while deliveries := consumer.claim(1000, wait=0):
            met.update(delivery.id for delivery in deliveries)
            consumer.ack(deliveries)
        return met.total() >= count

    wait_until(all_met, "all tasks were claimed", timeout=60)
    return met


def test_committed_rows_become_tasks_and_are_removed(database: sa.Engine, engine: shardq.Engine) -> None:
    due = _fill(database)
    later = _fill(database, 10, delay=3600)
    with database.connect() as connection:
        outbox.push(connection, "never")
    assert _moved(OutboxRelay(engine, database)) == TASKS + 10
    assert _left(database) == 0
    assert engine.stats().scheduled == TASKS + 10
    assert all(task is not None and task.state == "scheduled" for task in map(engine.get, later))
    engine.start()
    assert _taken(engine, TASKS) == Counter(due)


def test_an_engine_that_keeps_ends_knows_when_a_row_reached_it(database: sa.Engine, engine: shardq.Engine) -> None:
    for keeps in (False, True):
        engine.configure(done_age=3600 * keeps)
        with database.begin() as connection:
            id = outbox.push(connection, 1, id=f"order-{keeps}", delay=60)
        assert _moved(OutboxRelay(engine, database)) == 1
        info = engine.get(id)
        assert info is not None
        pushed = info.pushed
        assert (pushed is None) is not keeps
    assert pushed is not None
    assert abs(dt.datetime.now(dt.UTC) - pushed) < dt.timedelta(seconds=30)


def test_rows_are_kept_where_that_is_wished(database: sa.Engine, engine: shardq.Engine) -> None:
    _fill(database, 10)
    assert _moved(OutboxRelay(engine, database, keep=3600)) == 10
    assert _moved(OutboxRelay(engine, database, keep=3600)) == 0
    with database.connect() as connection:
        moved = connection.execute(sa.select(outbox.table.c.moved)).scalars().all()
    assert len(moved) == 10
    assert all(moved)


def test_rows_that_were_pushed_and_not_removed_are_not_pushed_twice(database: sa.Engine, engine: shardq.Engine) -> None:
    """As after a kill between the push and the removal: scheduled, running and finished tasks all count as pushed."""
    _fill(database, 50)
    with database.begin() as connection:
        outbox.push(connection, "mine", id="mine", dedup=3600)
        outbox.push(connection, "newest", id="replaced", on_conflict="replace", dedup=3600)
        outbox.push(connection, "strict", id="strict", on_conflict="reject", dedup=3600)
        for rule in ("keep", "replace", "reject"):
            outbox.push(connection, rule, id=f"without a window, {rule}", on_conflict=rule)
        outbox.push(connection, "twice", id="without a window, keep")
    with database.connect() as connection:
        rows = [_without_seq(row._asdict()) for row in connection.execute(outbox.table.select())]

    def again() -> None:
        with database.begin() as connection:
            connection.execute(outbox.table.insert(), rows)

    relays = [OutboxRelay(engine, database) for _ in range(4)]
    assert _moved(relays[0]) == 57
    again()
    assert _moved(relays[1]) == 57  # while they are scheduled
    engine.start()
    consumer = engine.consumer()
    held: list[shardq.Delivery] = []

    def claimed() -> int:
        held.extend(consumer.claim(1000, wait=0))
        return len(held)

    wait_until(lambda: claimed() >= 56, "all are leased")
    again()
    assert _moved(relays[2]) == 57  # while they are leased
    consumer.ack(held)
    again()
    assert _moved(relays[3]) == 57  # when they are done
    assert not any(relay.refused for relay in relays)
    stats = engine.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)
    assert len(held) == 56


def _without_seq(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if key != "seq"}


def test_a_refused_task_does_not_hold_up_the_others(
    database: sa.Engine, engine: shardq.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.push("first", id="taken", delay=60)
    with database.begin() as connection:
        outbox.push(connection, "second", id="taken", on_conflict="reject")
        outbox.push(connection, "other", delay=60)
    relay = OutboxRelay(engine, database)
    assert _moved(relay) == 2
    assert relay.refused == 1
    assert _left(database) == 0
    assert "taken" in caplog.text
    task = engine.get("taken")
    assert task is not None
    assert task.payload == "first"


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_new_rows_wake_a_relay_that_listens(postgres: Postgres, url: str, name: str) -> None:
    """With PostgreSQL's notices a row needs no look of the relay's own, which comes after minutes here."""
    database = sa.create_engine(postgres.make_database(name))
    outbox.create(database)
    with shardq.Engine(url, name=name, shards=2) as engine, contextlib.ExitStack() as stack:
        relay = OutboxRelay(engine, database)
        relay.listen_s = 600.0
        stack.enter_context(relay)
        wait_until(lambda: "running" in repr(relay), "the relay listens")
        for n in range(3):
            _fill(database, 10)
            wait_until(lambda n=n: relay.moved == 10 * (n + 1), "the rows were moved")  # type: ignore[misc]
    database.dispose()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_relay_that_is_stopped_while_it_connects_ends_at_once(postgres: Postgres, url: str, name: str) -> None:
    database = sa.create_engine(postgres.make_database(name))
    outbox.create(database)
    relay = OutboxRelay(shardq.Engine(url, name=name, shards=2), database)
    relay.listen_s = 600.0
    sa.event.listen(database, "checkout", lambda *_: relay.stop(), once=True)
    running = threading.Thread(target=relay.run, daemon=True)
    running.start()
    running.join(60)
    assert not running.is_alive()
    database.dispose()


def test_a_redis_that_is_away_loses_nothing(
    database: sa.Engine, own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with shardq.Engine(own_server.url, name=name, shards=2, timeout=0.5) as engine:
        engine.open()
        with OutboxRelay(engine, database, batch=100) as relay:
            first = _fill(database, 500)
            wait_until(lambda: relay.moved > 0, "some rows were moved")
            own_server.kill()
            second = _fill(database, 500)
            wait_until(lambda: relay.problem, "the relay noticed")
            own_server.start()
            wait_until(lambda: _left(database) == 0, "the outbox is empty", timeout=60)
            assert relay.problem == ""
        engine.start()
        assert _taken(engine, 1000) == Counter(first + second)
    assert caplog.text.count("can't be moved") >= 1


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_database_that_dies_loses_nothing(url: str, name: str) -> None:
    with Postgres() as server, shardq.Engine(url, name=name, shards=2) as engine:
        database = sa.create_engine(server.url(), pool_pre_ping=True)
        outbox.create(database)
        with OutboxRelay(engine, database, batch=50) as relay:
            ids = _fill(database, 2000)
            wait_until(lambda: relay.moved > 0, "some rows were moved")
            server.kill()
            wait_until(lambda: relay.problem, "the relay noticed")
            server.start()
            ids += _fill(database, 100)
            wait_until(lambda: _left(database) == 0, "the outbox is empty", timeout=60)
        engine.start()
        assert _taken(engine, 2100) == Counter(ids)
        database.dispose()


def test_a_failure_is_told_by_its_cause_and_tried_again(database: sa.Engine, engine: shardq.Engine) -> None:
    """The text of SQLAlchemy has the statement and its parameters too."""
    made, undone = {
        "sqlite": (
            [
                "CREATE TRIGGER fails BEFORE DELETE ON shardq_outbox BEGIN "
                "SELECT RAISE(ABORT, 'could not serialize access'); END"
            ],
            "DROP TRIGGER fails",
        ),
        "postgresql": (
            [
                "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "RAISE serialization_failure USING MESSAGE = 'could not serialize access'; END $$",
                "CREATE TRIGGER fails BEFORE DELETE ON shardq_outbox EXECUTE FUNCTION fails()",
            ],
            "DROP FUNCTION fails CASCADE",
        ),
    }[database.dialect.name]
    with database.begin() as connection:
        for statement in made:
            connection.exec_driver_sql(statement)
    _fill(database, 10)
    with OutboxRelay(engine, database, keep=0) as relay:
        wait_until(lambda: relay.problem, "the relay noticed")
        assert relay.problem == "the database says: could not serialize access"
        with database.begin() as connection:
            connection.exec_driver_sql(undone)
        wait_until(lambda: _left(database) == 0, "the rows are moved")


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_relays_are_no_stricter_than_they_must_be(postgres: Postgres, url: str, name: str) -> None:
    """Under a stricter isolation, rows that relays and others touch at once fail."""
    database = sa.create_engine(postgres.make_database(name), isolation_level="SERIALIZABLE")
    outbox.create(database)
    _fill(database, 1)
    levels = set()

    def note(connection: sa.Connection, _: object, statement: str, *__: object) -> None:
        if "SKIP LOCKED" in statement:
            levels.add(connection.get_isolation_level())

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        assert _moved(OutboxRelay(shardq.Engine(url, name=name, shards=2), database)) == 1
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert levels == {"READ COMMITTED"}
    database.dispose()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_no_step_of_a_relay_goes_through_all_that_waits(postgres: Postgres, url: str, name: str) -> None:
    """Also before the database knows how many do, as after an outage: its guess has all rows moved."""
    database = sa.create_engine(postgres.make_database(name))
    outbox.create(database)
    _fill(database, 3000)
    plans: list[str] = []

    @sa.event.listens_for(database, "before_cursor_execute")
    def explain(connection: sa.Connection, cursor: Any, statement: str, words: Any, *_: object) -> None:
        if statement.startswith(("SELECT", "UPDATE")):
            cursor.execute(f"EXPLAIN {statement}", words)
            plans.append("\n".join([statement, *(line for (line,) in cursor.fetchall())]))

    with shardq.Engine(url, name=name, shards=4) as engine:
        relay = OutboxRelay(engine, database, batch=100)
        relay.step()
        relay.close()
    database.dispose()
    assert len(plans) > 8
    by_id, unread = "Index Cond: ((id)::text", "= ANY (('{"  # a list that is made as it runs
    walks = [plan for plan in plans if unread in plan or ("_ids on" in plan and by_id not in plan)]
    assert not walks, "\n\n".join(walks)


def test_a_relay_can_be_started_again(database: sa.Engine, engine: shardq.Engine) -> None:
    relay = OutboxRelay(engine, database)
    for round in (1, 2):
        with relay:
            _fill(database, 10)
            wait_until(lambda round=round: relay.moved == 10 * round, "the rows were moved")  # type: ignore[misc]
            assert [seen.moved for seen in engine.stats().relays] == [10 * round]
            with pytest.raises(shardq.BadInput, match="runs already"):
                relay.start()
        assert engine.stats().relays == ()
    running = threading.Thread(target=relay.run)
    running.start()
    _fill(database, 10)
    wait_until(lambda: relay.moved == 30, "the rows were moved")
    relay.stop()
    running.join()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"outbox": None}, "outbox can't be None"),
        ({"outbox": outbox.table}, "leave it out"),
        ({"engine": None}, "give an Engine or an AsyncEngine"),
        ({"database": None}, "no URL of a database"),
        ({"batch": True}, "batch can't be True"),
    ],
)
def test_a_wrong_argument_is_refused_in_words(options: dict[str, object], said: str) -> None:
    given = {"engine": shardq.Engine("redis://127.0.0.1:1"), "database": sa.create_engine("sqlite://"), **options}
    with pytest.raises(shardq.BadInput, match=said):
        OutboxRelay(**given)  # type: ignore[arg-type]  # wrong on purpose


_RELAY = [sys.executable, "-m", "shardq", "outbox", "run"]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_relay_that_is_killed_again_and_again_moves_each_row_once(
    database_url: str, database: sa.Engine, engine: shardq.Engine, url: str, name: str
) -> None:
    """``kill -9`` at any point, while handlers work all the time: none lost, none twice."""
    engine.start()
    ids: list[str] = []
    stop = threading.Event()
    met = Counter[str]()
    consumer = engine.consumer()

    def handle() -> None:
        while not stop.is_set():
            if deliveries := consumer.claim(500, wait=0.05):
                met.update(delivery.id for delivery in deliveries)
                consumer.ack(deliveries)

    handler = threading.Thread(target=handle)
    handler.start()
    command = [*_RELAY, "--database", database_url, "--url", url, "--name", name, "--batch", "20", "--json"]
    try:
        for _ in range(4):
            ids += _fill(database, 400)
            before = met.total()
            relay = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                wait_until(lambda before=before: met.total() > before, "the relay moved some", timeout=60)  # type: ignore[misc]
            finally:
                os.kill(relay.pid, signal.SIGKILL)
                relay.wait()
        with OutboxRelay(engine, database):  # what the killed ones had claimed comes when their claims lapse
            wait_until(lambda: met.total() >= len(ids), "all were handled", timeout=60)
            wait_until(lambda: _left(database) == 0, "the outbox is empty", timeout=60)
    finally:
        stop.set()
        handler.join()
    assert met == Counter(ids)
    assert _left(database) == 0


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_command_creates_runs_shows_and_ends(tmp_path: object, url: str, name: str) -> None:
    database = f"sqlite:///{tmp_path}/app.db"
    shared = ["--database", database]

    def shardq_outbox(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "shardq", "outbox", *words, *shared], capture_output=True, text=True, timeout=60
        )

    assert shardq_outbox("create").returncode == 0
    opened = sa.create_engine(database)
    _fill(opened, 5)
    status = shardq_outbox("status", "--json")
    assert json.loads(status.stdout)["waiting"] == 5
    done = shardq_outbox("run", "--once", "--url", url, "--name", name)
    assert done.returncode == 0, done.stderr
    assert "5" in done.stdout
    assert _left(opened) == 0
    opened.dispose()
