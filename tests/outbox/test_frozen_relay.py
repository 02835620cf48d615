"""A relay stands still between its claim and its send, until another one has taken over and moved the rows: what it
sends when it goes on changes nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import shardq
from cluster.server import Server
from shardq import outbox
from shardq.outbox import OutboxRelay
from shardq.relay import table_rows
from shardq.relay.claiming import Claiming
from shardq.relay.database import waiting
from shardq.relay.table_rows import TableRows
from tests.support.waiting import wait_until

CLAIM_S = 0.3


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "CLAIM_S", CLAIM_S)
    monkeypatch.setattr(table_rows, "LOOK_S", 0.1)


@contextlib.contextmanager
def _frozen(relay: OutboxRelay, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The relay has claimed what there is, and sends it when the block has ended."""
    claimed, go_on = threading.Event(), threading.Event()
    carry_out = Claiming._carry_out

    def hold(self: Claiming, *words: object, **options: object) -> object:
        if self is relay._mover.claiming:
            claimed.set()
            assert go_on.wait(60)
        return carry_out(self, *words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Claiming, "_carry_out", hold)
    at_work = threading.Thread(target=relay.step)
    at_work.start()
    assert claimed.wait(60)
    yield
    go_on.set()
    at_work.join(60)


def _taken_over(database: sa.Engine, engine: shardq.Engine, relay: OutboxRelay) -> None:
    def moved() -> bool:
        relay.step()
        return waiting(database, relay.outbox).rows == 0

    wait_until(moved, "another relay has moved the rows")


FAR_S = 30 * 86_400.0


WAYS = [("no table", 600.0, 600.0), ("no table", 600.0, 0.05), ("a file", 600.0, 600.0), ("a file", FAR_S, 0.05),
        ("postgresql", FAR_S, 600.0)]  # fmt: skip
"""The far store of the engine, when the later task is due, and how long rows are remembered."""


@pytest.mark.parametrize("kind", ["cancel", "reschedule", "push"])
@pytest.mark.parametrize(("far", "delay", "remembered_s"), WAYS)
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_it_sends_later_changes_nothing(
    database: sa.Engine,
    database_url: str,
    tmp_path: Path,
    url: str,
    name: str,
    far: str,
    kind: str,
    delay: float,
    remembered_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis knows it, or it is refused by the clock of Redis; or by that of the far store."""
    monkeypatch.setattr(table_rows, "SEND_S", CLAIM_S)
    table = {"no table": None, "a file": str(tmp_path / "far.db"), "postgresql": database_url}[far]
    with shardq.Engine(url, name=name, shards=4, far=table) as engine:
        if table is not None:
            engine.push("the table is used", delay=FAR_S)
        with database.begin() as connection:
            if kind == "cancel":
                outbox.cancel(connection, "a")
            elif kind == "reschedule":
                outbox.reschedule(connection, "a", delay=0)
            else:
                outbox.push(connection, "first", id="a", on_conflict="replace")
        frozen, other = (OutboxRelay(engine, database, dedup=remembered_s) for _ in range(2))
        with contextlib.closing(frozen), contextlib.closing(other):
            with _frozen(frozen, monkeypatch):
                _taken_over(database, engine, other)
                engine.cancel("a")
                with database.begin() as connection:
                    outbox.push(connection, "later", id="a", delay=delay)
                _taken_over(database, engine, other)
                time.sleep(0.1)  # what is remembered for a moment is forgotten
            task = engine.get("a")
    assert task is not None
    assert (task.payload, task.state) == ("later", "scheduled")
    assert task.due.timestamp() > time.time() + 500  # type: ignore[union-attr]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_it_gives_back_no_row_that_another_has_claimed(database: sa.Engine) -> None:
    """A third one would send it beside that."""
    with database.begin() as connection:
        outbox.cancel(connection, "a")
    frozen, other = (TableRows(database, outbox.default_outbox, batch=10, keep_ms=0, memory_ms=1000) for _ in range(2))
    with frozen.turn():
        [row] = frozen.claim([1], "-1000")
    with database.begin() as connection:  # it lapses
        connection.execute(outbox.table.update().values(claimed=None))
    with other.turn():
        assert other.claim([1], "-1000")
    for each, waits in ((frozen, 0), (other, 1)):
        with each.turn():
            each.release([row.seq])
            assert len(each.page(0)) == waits


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_transaction_does_not_wait_for_it(
    database: sa.Engine, engine: shardq.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock is held while the servers work."""
    with database.begin() as connection:
        outbox.push(connection, "first", id="a", delay=600)
    with (
        contextlib.closing(OutboxRelay(engine, database)) as frozen,
        _frozen(frozen, monkeypatch),
        database.begin() as connection,
    ):
        connection.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
        assert not outbox.cancel(connection, "a"), "it is being moved, and the row follows it"
        connection.execute(sa.select(outbox.table).with_for_update()).all()
    with contextlib.closing(OutboxRelay(engine, database)) as other:
        _taken_over(database, engine, other)
    assert engine.get("a") is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_who_may_not_ask_is_told(
    database: sa.Engine, own_server: Server, replica: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows leave as soon as the server has answered, and health tells what that means."""
    own_server.ask("ACL", "SETUSER", "blind", "on", ">pw", "+@all", "-wait", "allchannels", "allkeys")
    url = own_server.url.replace("redis://", "redis://blind:pw@")
    with database.begin() as connection:
        outbox.push(connection, 1, id="a", delay=600)
    with shardq.Engine(url, name=name, shards=2) as engine, OutboxRelay(engine, database) as relay:
        wait_until(lambda: waiting(database, relay.outbox).rows == 0, "the row is moved")
        assert engine.get("a") is not None
        assert "WAIT" in relay.stats().unconfirmed
        assert any("a failover may lose their tasks" in reason for reason in engine.health().reasons)
    assert caplog.text.count("a failover may lose tasks") == 1
