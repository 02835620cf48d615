"""Rows of a spool's file and of an outbox that another program, another version or a broken disk has left: those that
can't be carried out are put aside, with a reason, and the others are.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.server import Server
from shardq import Engine, Task, outbox
from shardq.core.layout.keys import patterns
from shardq.core.model.record import JSON, encode_record
from shardq.engine.access import EngineAccess
from shardq.engine.wiring import spool_mover
from shardq.errors import SpoolFault
from shardq.outbox import OutboxRelay
from shardq.relay import table_rows
from shardq.relay.database import open_database
from shardq.relay.file import SpoolFile
from shardq.relay.row import Command
from tests.fuzz import command
from tests.fuzz.nasty import EVIL, OBEYED, few, records
from tests.support.waiting import wait_until

GOOD = encode_record(JSON, "good")
FAR_MS = 4_000_000_000_000

values: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, "", "x", "push", "cancel", "drop", "keep", "replace", "bad", 0, 1, -1, 1.5, 1e300, 2**62]),
    st.sampled_from([b"", b"\xff\xfe", b"mail/bad", EVIL, EVIL.encode(), "mail/" + "x" * 500, "no topic/x", "a\nb"]),
    records(),
)


class Change(NamedTuple):
    """What another program has written into a column."""

    column: str
    value: Any
    is_text: bool = False
    """Bytes are stored as a text, which may be no UTF-8."""


def broken(columns: Sequence[str], *, as_texts: bool = True) -> st.SearchStrategy[list[Change]]:
    change = st.builds(Change, st.sampled_from(columns), values, st.booleans() if as_texts else st.just(False))
    return st.lists(change, min_size=1, max_size=3)


def write(path: Path, table: str, row: int, changes: Sequence[Change]) -> None:
    """Changes a row, as far as the database takes it. SQLite's columns take values of any type."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for column, value, is_text in changes:
            update = f"UPDATE OR IGNORE {table} SET {column} = {'CAST(? AS TEXT)' if is_text else '?'} WHERE rowid = ?"
            with contextlib.suppress(sqlite3.Error), connection:
                connection.execute(update, (value, row))


@pytest.mark.slow
def test_commands_of_a_spool(single: Server, tmp_path: Path) -> None:
    columns = ("kind", "id", "due", "record", "on_conflict", "dedup", "made", "size", "spooled")
    totals = ("shards", "bytes", "waiting", "failed", "replayed", "tries")

    @example([Change("kind", "drop")], [])
    @example([Change("kind", b"\xff\xfe", is_text=True)], [])
    @example([Change("id", b"bad")], [])
    @example([Change("due", "x"), Change("size", b"x")], [Change("bytes", "x"), Change("waiting", -5)])
    @example([Change("record", b"")], [])
    @few(12)
    @given(broken(columns), st.one_of(st.just([]), broken(totals)))
    def are_replayed(changes: list[Change], counts: list[Change]) -> None:
        name = f"t{uuid.uuid4().hex[:12]}"
        path = tmp_path / name
        file = SpoolFile(path, engine=name, shards=1)
        file.add([[Command("push", id, FAR_MS, GOOD)] for id in ("good", "bad", "fine")])
        file.close()
        write(path, "command", 2, changes)
        write(path, "spool", 1, counts)
        with contextlib.ExitStack() as stack:
            stack.callback(file.close)
            engine = stack.enter_context(Engine(single.url, name=name, shards=1))
            options = EngineAccess(engine).options
            mover = stack.enter_context(contextlib.closing(spool_mover(file, options)))
            assert mover.run(lambda: False), mover.problem
            mover.confirm()
            are_stored(engine)
            assert (mover.store.moved + mover.store.failed, file.page(0)) == (3, [])
            shown(f"spool failed {path}", f"spool status {path}", f"spool failed {path} --json")
        remove(single, name)

    are_replayed()


def test_the_file_of_a_spool(tmp_path: Path) -> None:
    """One that is no spool any more, or a part of one, is told."""

    @example(32_774, b"", True)  # a page without rows in the tree
    @few(10)
    @given(
        st.integers(0, 1 << 16),
        st.one_of(st.binary(max_size=200), st.just(b"\xff" * 4096), st.just(b"\0" * 4096)),
        st.booleans(),
    )
    def is_told(begin: int, other: bytes, is_cut: bool) -> None:
        path = tmp_path / uuid.uuid4().hex
        file = SpoolFile(path, engine="orders", shards=1)
        file.add([[Command("push", f"good-{n}", FAR_MS, GOOD * 20)] for n in range(50)])
        file.close()
        text = path.read_bytes()
        path.write_bytes(text[:begin] + (b"" if is_cut else other + text[begin + len(other) :]))
        file, said = SpoolFile(path, engine="orders", shards=1), ""
        try:
            file.stats()
            while page := file.page(0):
                file.finish([each.seq for each in page], [])
            file.tidy()
        except SpoolFault as exc:
            said = str(exc)
        assert not OBEYED.search(said), ascii(said)
        file.close()
        shown(*(f"spool {line}" for line in (f"status {path}", f"failed {path}", f"failed {path} --drop")))
        path.unlink()

    is_told()


@pytest.mark.slow
def test_the_rows_of_an_outbox(single: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "FIRST_RETRY_S", 0.001)
    columns = [column.name for column in outbox.table.columns if column.name != "seq"]

    @example([Change("kind", "drop")])
    @example([Change("id", b"bad")])
    @example([Change("attempts", "x"), Change("retry_at", "x"), Change("reason", "x")])
    @few(8)
    @given(broken(columns, as_texts=False))
    def are_moved(changes: list[Change]) -> None:
        name = f"t{uuid.uuid4().hex[:12]}"
        url = f"sqlite:///{tmp_path / name}"
        with contextlib.ExitStack() as stack:
            database = open_database(url)
            stack.callback(database.dispose)
            outbox.create(database)
            with database.begin() as connection:
                outbox.push_many(connection, [Task("good", delay=3600, id=id) for id in ("good", "bad", "fine")])
            write(tmp_path / name, outbox.table.fullname, 2, changes)
            engine = stack.enter_context(Engine(single.url, name=name, shards=1))
            relay = stack.enter_context(contextlib.closing(OutboxRelay(engine, database)))

            def is_done() -> bool:
                relay.step()
                assert relay.problem == ""
                return relay.waiting().rows == 0

            wait_until(is_done, "all are moved, or put aside")
            are_stored(engine)
            shown(f"outbox failed --database {url}", f"outbox status --database {url}")
        remove(single, name)

    are_moved()


def are_stored(engine: Engine) -> None:
    """The rows beside the bad one were carried out."""
    for id in ("good", "fine"):
        task = engine.get(id)
        assert task is not None
        assert (task.state, task.payload) == ("scheduled", "good")


def shown(*lines: str) -> None:
    for line in lines:
        done = command.run(*line.split(), environment={})
        assert done.code in command.CODES, done
        assert "Traceback (most" not in done.err, done.err
        assert not OBEYED.search(done.out + done.err), ascii(done.out + done.err)


def remove(server: Server, name: str) -> None:
    with contextlib.closing(server.client()) as client:
        for pattern in patterns(name):
            if keys := [*client.scan_iter(match=pattern, count=1000)]:
                client.delete(*keys)
