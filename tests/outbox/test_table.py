"""The tables of the outbox: making them, their names, and the engine that they belong to."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

import shardq
from cluster.postgres import Postgres
from shardq import outbox
from shardq.outbox import Outbox, OutboxRelay
from tests.support.waiting import wait_until


def _waiting(database: sa.Engine, of: Outbox = outbox.default_outbox) -> int:
    with database.connect() as connection:
        return connection.execute(sa.select(sa.func.count()).where(of.table.c.moved.is_(None))).scalar_one()


def test_what_is_there_takes_no_lock_and_no_right_to_be_created_again(postgres: Postgres, name: str) -> None:
    database = sa.create_engine(postgres.make_database(name))
    outbox.create(database, engine=name)
    with database.begin() as busy, database.connect() as other:
        outbox.push(busy, "a push holds off whoever changes the table")
        busy.execute(sa.text("SELECT pg_advisory_xact_lock(495874732644)"))
        for statement in (
            f'CREATE ROLE "{name}"',
            f'GRANT SELECT ON shardq_outbox_engine TO "{name}"',
            f'SET LOCAL ROLE "{name}"',
            "SET LOCAL lock_timeout = '1s'",
        ):
            other.exec_driver_sql(statement)
        outbox.create(other, engine=name)
        with pytest.raises(shardq.errors.InvalidOption, match="belongs to the engine"):
            outbox.create(other, engine="another")
        other.rollback()
    database.dispose()


@pytest.mark.parametrize("length", [56, 63])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_long_names_are_neither_cut_nor_mixed_up(database: sa.Engine, url: str, name: str, length: int) -> None:
    """What belongs to a table, such as its index and its trigger, has a name of its own."""
    first, second = (Outbox("t" * (length - 1) + end) for end in "ab")
    for each in (first, second, first):
        each.create(database)
    names = {
        str(index["name"]) for each in (first, second) for index in sa.inspect(database).get_indexes(each.table.name)
    }
    assert len(names) == 10
    assert all(len(each) <= 63 for each in (*names, first.owner.name, second.owner.name))
    assert first.owner.name != second.owner.name
    with shardq.Engine(url, name=name, shards=2) as engine:
        relay = OutboxRelay(engine, database, outbox=second)
        relay.listen_s = 600.0
        with relay:
            wait_until(lambda: "running" in repr(relay), "the relay listens")
            with database.begin() as connection:
                first.push(connection, "for another relay")
                second.push(connection, "for this one")
            wait_until(lambda: relay.moved == 1, "the row was moved")
    assert _waiting(database, first) == 1


def test_a_name_that_would_be_cut_is_refused() -> None:
    with pytest.raises(shardq.errors.InvalidName, match="at most 63 characters"):
        Outbox("t" * 64)


@pytest.mark.parametrize(
    ("written", "relays", "said"),
    [
        ("orders", ("redis://127.0.0.1:1", "ordesr"), "--name orders"),
        ("orders", ("embedded:///nowhere", "orders"), "--url or $SHARDQ_URL"),
        (shardq.Engine("embedded:///nowhere", name="orders"), ("redis://127.0.0.1:1", "orders"), "embedded://"),
        (None, ("redis://127.0.0.1:1", "ordesr"), "--name first"),
    ],
    ids=["another name", "without a URL", "with a URL", "after the first relay"],
)
def test_a_relay_of_another_engine_moves_nothing(
    database: sa.Engine, written: str | shardq.Engine | None, relays: tuple[str, str], said: str
) -> None:
    outbox.create(database, engine=written)
    if written is None:  # the first relay writes it, whatever becomes of its rows
        with closing(OutboxRelay(shardq.Engine("redis://127.0.0.1:1", name="first", timeout=0.5), database)) as first:
            assert first.step() == 0
    with database.begin() as connection:
        outbox.push(connection, 1)
    with (
        closing(OutboxRelay(shardq.Engine(relays[0], name=relays[1]), database)) as relay,
        pytest.raises(shardq.errors.InvalidOption, match="delete the row of shardq_outbox_engine") as refused,
    ):
        relay.step()
    assert said in str(refused.value)
    assert _waiting(database) == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--name", "ordesr", "--url", "{url}"), ("--name", "{name}")])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_command_with_a_slip_ends_with_an_error_and_leaves_nothing_behind(
    tmp_path: Path, url: str, name: str, words: tuple[str, ...]
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "shardq", "outbox", *words, "--database", f"sqlite:///{tmp_path}/app.db"]
        # any embedded server of the slip would be here
        homes = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
        env = {key: value for key, value in os.environ.items() if key != "SHARDQ_URL"} | homes
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)

    database = sa.create_engine(f"sqlite:///{tmp_path}/app.db")
    assert run("create", "--name", name).returncode == 0
    with database.begin() as connection:
        outbox.push(connection, 1)
    slip = run("run", "--once", *(word.format(url=url, name=name) for word in words))
    assert slip.returncode != 0
    assert f"belongs to the engine '{name}'" in slip.stderr
    assert _waiting(database) == 1
    assert not (tmp_path / "data").exists()
    right = run("run", "--once", "--name", name, "--url", url)
    assert right.returncode == 0, right.stderr
    assert _waiting(database) == 0
    database.dispose()
