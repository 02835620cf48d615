"""Redis, or the database, is restored from an earlier state: the relay says which of the two is older. It goes on where
Redis is, and stops where the database is, as rows would run twice.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

import pytest
import sqlalchemy as sa

import shardq
from cluster.postgres import Postgres
from cluster.server import Server
from shardq import outbox
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.topology import Topology
from shardq.core.model.checks import now_ms
from shardq.engine.around import EngineAccess, Target
from shardq.outbox import OutboxRelay
from shardq.relay import witness
from shardq.relay.beats import TableBeats
from shardq.relay.confirming import Confirming
from shardq.relay.database import open_database, waiting
from shardq.relay.witness import ClocksDiffer, OlderDatabase
from tests.support.waiting import wait_until

COUNT = 30
LATER_S = 600.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat at each step."""
    monkeypatch.setattr(witness, "BEAT_S", 0.0)


def _stored(database: sa.Engine, count: int = COUNT, *, delay: float = LATER_S) -> list[str]:
    with database.begin() as connection:
        return outbox.push_many(connection, [shardq.Task(n, delay=delay) for n in range(count)])


def _moved(engine: shardq.Engine, database: sa.Engine, *, keep: float = 3600.0, dedup: float = 600.0) -> str:
    """Moves what waits. Returns what the relay says to be missing."""
    with closing(OutboxRelay(engine, database, keep=keep, dedup=dedup)) as relay:
        relay.step()
        while waiting(database, relay.outbox).rows:
            relay.step()
        return relay.stats().missing


def _there(engine: shardq.Engine) -> list[str]:
    return sorted(task.id for task in engine.tasks(limit=1000))


def _handled(engine: shardq.Engine, count: int) -> list[str]:
    consumer, met = engine.consumer(), list[str]()
    while len(met) < count:
        deliveries = consumer.claim(count, wait=10)
        met += [delivery.id for delivery in deliveries]
        consumer.ack(deliveries)
    return met


def _again(database: sa.Engine, engine: shardq.Engine, since_ms: int) -> int:
    with database.connect() as connection:
        return TableBeats(lambda: connection, outbox.default_outbox).again(since_ms, _topology(engine))


def _topology(engine: shardq.Engine) -> Topology:
    with closing(Target(EngineAccess(engine).options)) as servers:
        return servers.topology()


class Dump:
    """The rows of the outbox's tables, as a backup has them."""

    def __init__(self, database: sa.Engine) -> None:
        self._tables = (outbox.table, outbox.default_outbox.owner)
        with database.connect() as connection:
            self._rows = [connection.execute(sa.select(table)).mappings().all() for table in self._tables]

    def restore(self, database: sa.Engine) -> None:
        with database.begin() as connection:
            for table, rows in zip(self._tables, self._rows, strict=True):
                connection.execute(table.delete())
                if rows:
                    connection.execute(table.insert(), [dict(row) for row in rows])


# ---- the database is older


@pytest.mark.parametrize("beats", [False, True], ids=["before its first beat", "after one"])
def test_a_database_that_goes_back_stops_the_relay(database: sa.Engine, engine: shardq.Engine, *, beats: bool) -> None:
    if beats:
        _stored(database, 1)
        _moved(engine, database)
    ids = _stored(database, delay=0)
    backup = Dump(database)
    _moved(engine, database)
    engine.start()
    met = _handled(engine, COUNT)
    assert sorted(met) == sorted(ids)
    backup.restore(database)
    with closing(OutboxRelay(engine, database, dedup=0.001)) as relay:
        for _ in range(2):
            with pytest.raises(OlderDatabase, match="shardq outbox accept --drop-before"):
                relay.step()
    assert waiting(database, outbox.default_outbox).rows == COUNT
    assert engine.consumer().claim(COUNT, wait=0) == []


def test_a_database_that_goes_back_under_a_relay_stops_it(
    database: sa.Engine, engine: shardq.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next beat is far: the claim of its next rows tells."""
    monkeypatch.setattr(witness, "BEAT_S", 600.0)
    ids = _stored(database)
    backup = Dump(database)
    with closing(OutboxRelay(engine, database)) as relay:
        while waiting(database, relay.outbox).rows:
            relay.step()
        for id in ids:
            engine.cancel(id)
        backup.restore(database)
        with pytest.raises(OlderDatabase):
            relay.step()
    assert _there(engine) == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_database_that_is_restored_from_its_dump(
    database: sa.Engine, engine: shardq.Engine, postgres: Postgres
) -> None:
    """By pg_dump and pg_restore, as an operator does it, and then says that rows count as moved."""
    name = str(database.url.database)
    engine.start()
    ids = _stored(database, delay=0)
    dump = postgres.dump(name)
    _moved(engine, database)
    assert sorted(_handled(engine, COUNT)) == sorted(ids)
    with closing(OutboxRelay(engine, database, dedup=0.001)) as relay:
        database.dispose()
        postgres.restore(dump, name)
        with pytest.raises(OlderDatabase, match="shardq outbox accept --drop-before"):
            relay.step()
        with database.connect() as connection:
            assert TableBeats(lambda: connection, outbox.default_outbox).accept(now_ms(), now_ms()) == COUNT
        relay.listen_s = 600.0
        relay.start()
        wait_until(lambda: "running" in repr(relay), "the relay listens")
        new = _stored(database, 1, delay=0)
        assert _handled(engine, 1) == new
        relay.stop()


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("drops", [False, True], ids=["move again", "drop"])
def test_an_operator_says_what_becomes_of_the_rows(
    database: sa.Engine, engine: shardq.Engine, url: str, name: str, tmp_path: Path, *, drops: bool
) -> None:
    """By the commands, with a copy of the file as a backup. Redis knows the rows of the last ten minutes."""
    done = _stored(database, delay=0)
    far = _stored(database)
    database.dispose()
    shutil.copy(tmp_path / "app.db", tmp_path / "backup")
    _moved(engine, database)
    engine.start()
    assert sorted(_handled(engine, COUNT)) == sorted(done)
    database.dispose()
    shutil.copy(tmp_path / "backup", tmp_path / "app.db")
    again = open_database(str(database.url))
    new = _stored(again, 1)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        where = ("--database", str(database.url), "--url", url, "--name", name)
        command = [sys.executable, "-m", "shardq", "outbox", *words, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    ended = run("run", "--once")
    assert ended.returncode == 1
    said = "shardq outbox accept --drop-before "
    assert said in ended.stderr
    instant = ended.stderr.partition(said)[2].partition("`")[0]
    chosen = ("--drop-before", instant) if drops else ("--move-again",)
    assert run("accept").returncode == 2
    told = run("accept", *chosen)
    assert (told.returncode, told.stderr) == (0, "")
    assert _moved(engine, again) == ""
    again.dispose()
    assert engine.consumer().claim(COUNT, wait=0) == []
    assert set(far) <= set(_there(engine)) <= {*far, *new}


def test_one_outbox_beside_another(database: sa.Engine, engine: shardq.Engine, tmp_path: Path) -> None:
    """Two databases for one engine, and one that is made anew: each has beats of its own."""
    for _ in range(2):
        other = open_database(f"sqlite:///{tmp_path}/other.db")
        outbox.create(other)
        for each in (database, other):
            _stored(each, 1)
            assert _moved(engine, each) == ""
        other.dispose()
        (tmp_path / "other.db").unlink()
    assert len(_there(engine)) == 4


# ---- Redis is older


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_server_that_is_emptied(database: sa.Engine, own_server: Server, name: str) -> None:
    """Rows that were kept are moved again. The engine is made anew."""
    with shardq.Engine(own_server.url, name=name, shards=2) as engine:
        ids = _stored(database)
        assert _moved(engine, database) == ""
        assert engine.stats().scheduled == COUNT
    own_server.ask("FLUSHALL")
    with shardq.Engine(own_server.url, name=name, shards=2) as engine:
        said = _moved(engine, database)
        assert said.startswith(f"Redis came back empty (shards 0, 1): up to {COUNT} kept rows may be missing there")
        assert _there(engine) == []
        assert _again(database, engine, 0) == COUNT
        assert _moved(engine, database) == ""
        assert _there(engine) == sorted(ids)


def _restored(server: Server, snapshot: dict[Any, Any]) -> None:
    """The server has what it had when the snapshot was taken."""
    with closing(server.client()) as client:
        client.flushall()
        for key, value in snapshot.items():
            client.restore(key, 0, value)


def _snapshot(server: Server) -> dict[Any, Any]:
    with closing(server.client()) as client:
        return {key: client.dump(key) for key in client.keys("*")}


def test_a_server_that_goes_back(
    database: sa.Engine, own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was moved before the snapshot, and handled or not, is not moved again; what was moved after it, is."""
    with shardq.Engine(own_server.url, name=name, shards=2) as engine:
        engine.start()
        done, waits = _stored(database, delay=0), _stored(database)
        _moved(engine, database)
        assert sorted(_handled(engine, COUNT)) == sorted(done)
        _moved(engine, database)  # a beat
    snapshot = _snapshot(own_server)
    with shardq.Engine(own_server.url, name=name, shards=2) as engine:
        lost = _stored(database)
        assert _moved(engine, database) == ""
        assert len(_there(engine)) == 2 * COUNT
    _restored(own_server, snapshot)
    with (
        shardq.Engine(own_server.url, name=name, shards=2) as engine,
        OutboxRelay(engine, database, dedup=0.001) as relay,
    ):
        new = _stored(database, 1)
        wait_until(lambda: relay.stats().missing and not waiting(database, relay.outbox).rows, "rows are moved on")
        said = relay.stats().missing
        assert said.startswith("Redis came back from 20")
        assert [finding.name for finding in engine.health().findings if finding.about == "shardq_outbox"] == [
            "outbox_missing"
        ]
        assert _there(engine) == sorted([*waits, *new])
        with database.connect() as connection:
            since = TableBeats(lambda: connection, outbox.default_outbox).beats().since
        assert since is not None
        assert _again(database, engine, since) >= COUNT
        wait_until(lambda: not relay.stats().missing, "nothing is missing")
        wait_until(lambda: not waiting(database, relay.outbox).rows, "rows are moved again")
        assert _there(engine) == sorted([*waits, *lost, *new])
        engine.start()
        assert engine.consumer().claim(COUNT, wait=0) == []
    assert caplog.text.count("tasks of the outbox may be missing") == 1


def test_a_server_that_goes_back_between_the_two_looks_of_a_beat(
    database: sa.Engine, own_server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat that was written there would hide what is missing."""
    with shardq.Engine(own_server.url, name=name, shards=2) as engine:
        _stored(database)
        _moved(engine, database)
        snapshot = _snapshot(own_server)
        _stored(database)
        _moved(engine, database)
        meet, restored = Confirming.meet, list[bool]()

        def first_goes_back(self: Confirming, shards: Collection[int], within_s: float | None = None) -> None:
            if not restored and within_s is None:  # by a beat: it has asked, and not written
                restored.append(True)
                _restored(own_server, snapshot)
            meet(self, shards, within_s)

        monkeypatch.setattr(Confirming, "meet", first_goes_back)
        with OutboxRelay(engine, database) as relay:
            _stored(database, 1)
            wait_until(lambda: not waiting(database, relay.outbox).rows, "the row is moved")
            assert "kept rows may be missing there" in relay.stats().missing
        assert restored


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_shard_that_goes_back_gets_its_rows_only(database: sa.Engine, own_server: Server, name: str) -> None:
    with shardq.Engine(own_server.url, name=name, shards=4) as engine:
        first = _stored(database, 100)
        _moved(engine, database)
        prefix = shard_keys(name, 2).prefix
        with closing(own_server.client()) as client:
            client.delete(*client.keys(f"{prefix}*"))
        assert "(shard 2): up to 100" in _moved(engine, database)
        mine = [id for id in first if _topology(engine).shard_of(id) == 2]
        for id in set(first) - set(mine):
            engine.cancel(id)
        assert _again(database, engine, 0) == len(mine)
        _moved(engine, database, dedup=0.001)
        assert _there(engine) == sorted(mine)


def test_a_server_that_is_killed_is_not_older(database: sa.Engine, own_server: Server, name: str) -> None:
    """Beats count when replicas and disk have them, like rows."""
    with shardq.Engine(own_server.url, name=name, shards=2) as engine:
        for _ in range(3):
            ids = _stored(database)
            with closing(OutboxRelay(engine, database)) as relay:
                relay.step()
                own_server.kill()
                own_server.restart()
                wait_until(lambda: _went_on(relay), "rows are moved")
                assert relay.stats().missing == ""
            assert {*ids} <= {*_there(engine)}


def _went_on(relay: OutboxRelay) -> bool:
    try:
        relay.step()
    except shardq.ShardqError:
        return False
    return not relay.waiting().rows


def test_another_number_of_shards_is_not_older(database: sa.Engine, engine: shardq.Engine) -> None:
    engine.start()
    for shards in (8, 4, 8):
        _stored(database, 3)
        assert _moved(engine, database) == ""
        engine.resize(shards)
    assert _moved(engine, database) == ""


# ---- clocks, and rows that are kept


def test_clocks_that_differ_stop_the_relay(
    database: sa.Engine, engine: shardq.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stored(database, 1)
    monkeypatch.setattr(witness, "CLOCKS_MS", -1)
    with closing(OutboxRelay(engine, database)) as relay:
        with pytest.raises(ClocksDiffer, match="run an NTP service"):
            relay.step()
        assert relay.waiting().rows == 1
        monkeypatch.undo()
        assert relay.step() == 1


def test_rows_are_kept_as_long_as_is_wished(database: sa.Engine, engine: shardq.Engine) -> None:
    _stored(database, 3)
    _moved(engine, database, keep=3600)
    with database.begin() as connection:
        seqs = connection.execute(sa.select(outbox.table.c.seq).order_by(outbox.table.c.seq)).scalars().all()
        for seq, moved in zip(seqs, (now_ms(), now_ms() - 7_200_000, None), strict=True):
            connection.execute(outbox.table.update().where(outbox.table.c.seq == seq).values(moved=moved))
    _moved(engine, database, keep=3600)
    with database.connect() as connection:
        assert connection.execute(sa.select(outbox.table.c.seq).order_by(outbox.table.c.seq)).scalars().all() == [
            seqs[0],
            seqs[2],
        ]


# ---- ledgers: restored at any instant, while relays are at work

IDS = int(os.environ.get("SHARDQ_LEDGER", "500"))  # of each kind
ROUNDS = 3
SOME = 25  # commands of each kind in a transaction


class Storing:
    """Stores pushes, cancels and reschedules of ids that are there, in a thread."""

    def __init__(self, engine: shardq.Engine, database: sa.Engine) -> None:
        self.first, self.second = (int(time.time()) + hours * 3600.0 for hours in (1, 2))
        self.pushed: list[str] = []
        self._database = database
        for topic in ("cancel", "move"):
            engine.push_many(shardq.Task(n, id=f"{n}", topic=topic, at=self.first) for n in range(IDS))
        self._thread = threading.Thread(target=self._store)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _store(self) -> None:
        for at in range(0, IDS, SOME):
            with self._database.begin() as connection:
                tasks = [shardq.Task(n, at=self.first) for n in range(SOME)]
                self.pushed += outbox.push_many(connection, tasks)
                for n in range(at, at + SOME):
                    outbox.cancel(connection, f"cancel/{n}")
                    outbox.reschedule(connection, f"move/{n}", at=self.second)
            time.sleep(0.05)

    def check(self, engine: shardq.Engine) -> None:
        """Each command was carried out."""
        there, cursor = list[shardq.TaskInfo](), None
        while page := engine.tasks(limit=1000, cursor=cursor):
            there += page
            if (cursor := page.cursor) is None:
                break
        moved = {task.id: task.due.timestamp() for task in there if task.topic == "move" and task.due}
        assert moved == {f"move/{n}": self.second for n in range(IDS)}
        assert sorted(task.id for task in there if task.topic == "") == sorted(self.pushed)
        assert not [task.id for task in there if task.topic == "cancel"]


def _waits(database: sa.Engine) -> int:
    return waiting(database, outbox.default_outbox).rows


@pytest.mark.ledger
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_server_that_goes_back_at_any_instant(database: sa.Engine, server_binary: Path, name: str) -> None:
    """What it had lost is there again when the kept rows were moved again."""
    with Server(server_binary, options={"save": "", "appendonly": "no"}) as server:
        with shardq.Engine(server.url, name=name, shards=4) as engine:
            storing = Storing(engine, database)
            server.ask("SAVE")
        with ExitStack() as relays, storing:
            for _ in range(2 if database.dialect.name == "postgresql" else 1):
                relays.enter_context(OutboxRelay(shardq.Engine(server.url, name=name), database))
            for _ in range(ROUNDS):
                time.sleep(random.uniform(0.2, 1.0))
                server.ask("SAVE")
                beat = _last(database)
                wait_until(lambda beat=beat: _confirmed(database) > beat, "a beat", timeout=60)  # type: ignore[misc]
                time.sleep(random.uniform(0, 0.5))
                server.kill()
                server.restart()
        with shardq.Engine(server.url, name=name) as engine, OutboxRelay(engine, database) as relay:
            wait_until(lambda: not _waits(database), "rows are moved on", timeout=120)
            wait_until(lambda: relay.stats().missing, "it is told")
            _again(database, engine, _since(database))
            wait_until(lambda: not relay.stats().missing, "nothing is missing")
            wait_until(lambda: not _waits(database), "rows are moved again", timeout=120)
            storing.check(engine)


def _since(database: sa.Engine) -> int:
    with database.connect() as connection:
        since = TableBeats(lambda: connection, outbox.default_outbox).beats().since
    assert since is not None
    return since


@pytest.mark.ledger
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_database_that_goes_back_at_any_instant(database: sa.Engine, engine: shardq.Engine) -> None:
    """The relay stops each time. What Redis knows is moved again without a second time."""
    storing = Storing(engine, database)
    with OutboxRelay(engine, database) as relay:
        with storing:
            wait_until(lambda: len(storing.pushed) >= SOME, "some are stored")
            backup = Dump(database)
        for _ in range(ROUNDS):
            wait_until(lambda: not _waits(database), "rows are moved", timeout=120)
            beat = _last(database)
            wait_until(lambda beat=beat: relay.problem or _last(database) > beat, "a beat")  # type: ignore[misc]
            for id in random.sample(storing.pushed, 20):
                assert engine.cancel(id) is shardq.Outcome.CANCELLED
                storing.pushed.remove(id)
            backup.restore(database)
            with database.begin() as connection:
                storing.pushed.append(outbox.push(connection, "new", at=storing.first))
            wait_until(lambda: "shardq outbox accept" in relay.problem, "the relay stops")
            with database.connect() as connection:
                TableBeats(lambda connection=connection: connection, outbox.default_outbox).accept(  # type: ignore[misc]
                    now_ms(), None
                )
            wait_until(lambda: not relay.problem, "it goes on")
            backup = Dump(database)
        wait_until(lambda: not _waits(database), "rows are moved", timeout=120)
        storing.check(engine)


def _confirmed(database: sa.Engine) -> int:
    """The last beat that all shards have."""
    with database.connect() as connection:
        return min(TableBeats(lambda: connection, outbox.default_outbox).beats().shards.values(), default=0)


def _last(database: sa.Engine) -> int:
    with database.connect() as connection:
        return TableBeats(lambda: connection, outbox.default_outbox).beats().last
