"""Rows that can't move stop no others: those of a shard that takes nothing, and those that a shard refuses."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

import shardq
from cluster.cluster import Cluster
from cluster.postgres import Postgres
from shardq import outbox
from shardq.cli import main
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.topology import Topology
from shardq.outbox import OutboxRelay
from shardq.relay import mover, table_rows
from shardq.relay.database import Waiting, drop_failed, failed, open_database, retry_failed
from tests.support.waiting import wait_until

SHARDS = 6


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between the tries of a refused row are short."""
    monkeypatch.setattr(table_rows, "FIRST_RETRY_S", 0.01)


def _push(database: sa.Engine, tasks: list[shardq.Task]) -> list[str]:
    with database.begin() as connection:
        return outbox.push_many(connection, tasks)


def _break(database: sa.Engine, id: str) -> None:
    """Makes a row such that any shard refuses it: the script can't read its window."""
    with database.begin() as connection:
        table = outbox.table
        connection.execute(table.update().where(table.c.id == id).values(dedup=-1))


def _left(database: sa.Engine) -> list[str]:
    with database.connect() as connection:
        return list(
            connection.execute(
                sa.select(outbox.table.c.id).where(outbox.table.c.moved.is_(None)).order_by(outbox.table.c.seq)
            ).scalars()
        )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault"), [("sqlite", "kill"), ("postgresql", "pause")])
def test_rows_for_other_shards_go_on_while_a_master_is_dead(
    server_binary: Path, postgres: Postgres, tmp_path: Path, name: str, kind: str, fault: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Rows for its shards lie before, between and behind theirs, many times more than a batch."""
    monkeypatch.setattr(mover, "TRIP_S", 0.5)
    url = f"sqlite:///{tmp_path}/app.db" if kind == "sqlite" else postgres.make_database(name)
    database = open_database(url)
    outbox.create(database)
    options = {"cluster-require-full-coverage": "no", "appendonly": "yes"}
    with (
        Cluster(server_binary, masters=3, replicas=0, options=options) as cluster,
        shardq.Engine(cluster.url, name=name, shards=SHARDS, timeout=4.0) as engine,
    ):
        nodes = [cluster.node_of_slot(shard_keys(name, shard).slot) for shard in range(SHARDS)]
        dead = next(node for node in nodes if node is not cluster.node_of_slot(control_keys(name).slot))
        topology = Topology(epoch=1, shards=SHARDS)
        with OutboxRelay(engine, database, batch=100) as relay:
            _push(database, [shardq.Task(n, delay=600) for n in range(100)])
            wait_until(lambda: relay.moved == 100, "it knows all nodes")
            dead.kill() if fault == "kill" else dead.pause()
            ids = _push(database, [shardq.Task(n, delay=600, id=f"n{n}") for n in range(3000)])
            stuck = [id for id in ids if nodes[topology.shard_of(id)] is dead]
            wait_until(lambda: relay.moved == 3100 - len(stuck), "all others were moved", timeout=30)
            more = _push(database, [shardq.Task(n, delay=600, id=f"m{n}") for n in range(300)])
            stuck += [id for id in more if nodes[topology.shard_of(id)] is dead]
            wait_until(lambda: relay.moved == 3400 - len(stuck), "new ones are moved, too", timeout=30)
            assert _left(database) == stuck
            assert f"(id {stuck[0]})" in relay.problem
            assert dead.address in relay.problem
            assert caplog.text.count("can't be moved") == 1
            assert relay.stats().failed == 0
            assert relay.stats().oldest_s > 0
            dead.start() if fault == "kill" else dead.resume()
            wait_until(lambda: not _left(database), "all were moved", timeout=60)
            wait_until(lambda: not relay.problem, "all is well")
        assert relay.moved == 3400
        assert engine.stats().scheduled == 3400
    database.dispose()


@pytest.mark.slow
def test_a_row_that_is_refused_is_put_aside_and_holds_up_no_other(
    database: sa.Engine, engine: shardq.Engine, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    """One in a hundred is bad. The others are moved by the first steps, the bad ones are tried alone."""
    ids = _push(database, [shardq.Task(n, delay=600, id=f"n{n}") for n in range(1000)])
    bad = ids[::100]
    for id in bad:
        _break(database, id)
    with OutboxRelay(engine, database, batch=100) as relay:
        wait_until(lambda: relay.stats().failed == len(bad), "the bad ones were put aside")
        assert relay.moved == 990
        assert relay.problem == ""
        [reason] = [text for text in engine.health().reasons if "outbox" in text]
        assert reason.startswith("10 rows of the outbox shardq_outbox were put aside: `shardq outbox failed` lists ")
        said = [record.message for record in caplog.records if "put aside" in record.message]
        assert 1 <= len(said) <= 3, "once for each node, which the reason names"
        assert said[0].startswith("row 1 (id n0) of the outbox shardq_outbox was refused 5 times, and put aside: ")
        listed = failed(database, outbox.default_outbox)
        assert [(row.id, row.attempts) for row in listed] == [(id, table_rows.TRIES) for id in bad]
        assert all(row.reason.startswith("ServerFault: ") for row in listed)
        assert relay.waiting() == Waiting(0, 0, None, 10)
        with database.begin() as connection:
            connection.execute(outbox.table.update().where(outbox.table.c.id == bad[0]).values(dedup=0))
        assert retry_failed(database, outbox.default_outbox, [listed[0].seq]) == 1
        wait_until(lambda: relay.moved == 991, "the row that was mended is moved")
        assert drop_failed(database, outbox.default_outbox) == 9
        wait_until(lambda: relay.stats().failed == 0, "none is left", timeout=30)
    assert _left(database) == []


def test_later_rows_of_an_id_wait_only_while_the_first_is_tried(
    database: sa.Engine, engine: shardq.Engine, impatient: None
) -> None:
    good = shardq.Task("good", id="a", on_conflict="replace")
    _push(database, [shardq.Task("bad", id="a"), good, shardq.Task("other", id="b")])
    with database.begin() as connection:
        connection.execute(outbox.table.update().where(outbox.table.c.seq == 1).values(dedup=-1))
    with contextlib.closing(OutboxRelay(engine, database)) as relay:
        relay.step()
        assert _left(database) == ["a", "a"], "the second waits for the tries of the first"
        wait_until(lambda: relay.step() or relay.moved == 2, "the first was put aside, and the second was moved")
    task = engine.get("a")
    assert task is not None
    assert task.payload == "good"


def test_a_batch_is_bounded_by_its_bytes(
    database: sa.Engine, engine: shardq.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is larger than the bound goes alone."""
    monkeypatch.setattr(mover, "MOVE_BYTES", 10_000)
    _push(database, [shardq.Task("x" * size, delay=600) for size in (4000, 4000, 4000, 20_000, 10, 10)])
    with contextlib.closing(OutboxRelay(engine, database)) as relay:
        assert [relay.step() for _ in range(5)] == [2, 1, 1, 2, 0]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_command_lists_retries_and_drops(
    database: sa.Engine, database_url: str, engine: shardq.Engine, impatient: None,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("shardq.cli.outbox.set_up_logging", lambda **_: None)  # it is of the whole process

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["shardq", "outbox", *words, "--database", database_url])
        assert main() in (0, None)
        return capsys.readouterr().out

    ids = _push(database, [shardq.Task(n, id=f"n{n}") for n in range(3)])
    for id in ids:
        _break(database, id)
    with OutboxRelay(engine, database) as relay:
        wait_until(lambda: relay.stats().failed == 3, "they were put aside")
    lines = run("failed").splitlines()
    assert [line.split("  ")[1] for line in lines] == ["row 1 push n0", "row 2 push n1", "row 3 push n2"]
    assert "ServerFault: " in lines[0]
    listed = [json.loads(line) for line in run("failed", "--json").splitlines()]
    assert [(each["row"], each["kind"], each["id"], each["attempts"]) for each in listed] == [
        (n + 1, "push", f"n{n}", 5) for n in range(3)
    ]
    assert run("status") == "none waits; 3 were put aside\n"
    assert run("retry", "1").startswith("put back 1 row")
    assert json.loads(run("drop", "2", "--json")) == {"dropped": 1}
    assert json.loads(run("retry", "--json")) == {"retried": 1}
    assert json.loads(run("status", "--json"))["failed"] == 0
    assert _left(database) == ["n0", "n2"]
