"""The outbox, the spool, schedules and the far store: what they keep goes to the engine, whose Redis is broken."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import re
import sqlite3
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from shardq import Engine, Task, outbox
from shardq.core.layout.keys import control_keys
from shardq.engine.access import EngineAccess
from shardq.errors import ShardqError
from shardq.features.embedded import locks
from shardq.features.far.far import open_store
from shardq.features.far.report import LoaderReport
from shardq.features.far.rows import Row
from shardq.features.listing.query import Query
from shardq.features.spool.spool import lock_of
from shardq.outbox import OutboxRelay
from shardq.outbox.rows import RowPacker
from shardq.relay.chain_sync import TaskStore
from shardq.relay.database import failed, open_database
from shardq.relay.file import SpoolFile
from tests.faults.neighbours import RedisNeighbour
from tests.faults.way import Way
from tests.support.waiting import wait_until

TOPIC = "mail"

TIMEOUT_S = 0.5
"""How long the engine's Redis may be silent."""

_SAME_FOR_ALL = "one script stores all items of a call, and takes the same time for each"


class StoreWay(Way):
    """Keeps items for an engine of its own."""

    neighbour: RedisNeighbour
    store: ClassVar[str]
    """The fixture of its database or file."""
    not_here: ClassVar[Mapping[str, str]] = {
        "timing out on one item": _SAME_FOR_ALL,
        "slow on one item": _SAME_FOR_ALL,
    }
    tells: ClassVar[str]
    """The pattern of the line that says an outage."""

    def __init__(self, neighbour: RedisNeighbour, name: str, store: Any) -> None:
        self.neighbour = neighbour
        self.name = name
        self.store_at = store
        neighbour.empty()
        self.seen = Engine(neighbour.server.url, name=name, shards=2, timeout=10.0).open()
        """Looks at what has arrived, from another process as it were."""
        self.run(neighbour.server.url)

    @abstractmethod
    def run(self, url: str) -> None:
        """Starts this side, with this URL of Redis."""

    def close(self) -> None:
        self.stop()
        self.seen.close()

    def engine(self, url: str, **options: Any) -> Engine:
        return Engine(url, name=self.name, shards=2, timeout=TIMEOUT_S, connect_timeout=TIMEOUT_S, **options)

    def said(self, records: Sequence[logging.LogRecord]) -> int:
        return sum(re.search(self.tells, record.getMessage()) is not None for record in records)

    def prepare(self, uniques: Sequence[str]) -> None:
        pass

    def put_large(self, unique: str, size: int) -> None:
        self.put(unique, payload="x" * size)

    def arrived(self) -> Sequence[str]:
        return [task.id.removeprefix(f"{TOPIC}/") for task in self.seen.tasks(topic=TOPIC, limit=1000)]

    def send_to(self, address: str, login: str = "") -> None:
        self.stop()
        self.run(f"redis://{login}{address}")


class OutboxWay(StoreWay):
    """A table of SQLite, and its relay."""

    kind = "outbox"
    store = "sqlite_url"
    tells = "rows of the outbox can't be moved"
    patience: ClassVar[Mapping[str, float]] = {
        "shardq.relay.mover.TRIP_S": TIMEOUT_S,
        "shardq.relay.table_rows.FIRST_RETRY_S": 0.01,
        "shardq.relay.mover.LONGEST_PAUSE_S": 0.4,
        "shardq.outbox.relay.LONGEST_PAUSE_S": 0.4,
        "shardq.outbox.relay.POLL_S": 0.02,
    }
    _relay: OutboxRelay | None = None

    def run(self, url: str) -> None:
        self._database = open_database(self.store_at)
        outbox.create(self._database)
        self._engine = self.engine(url)
        self._relay = OutboxRelay(self._engine, self._database)
        self._relay.start()

    def stop(self) -> None:
        if self._relay is not None:
            self._relay.stop()
            self._relay = None
            self._engine.close()
            self._database.dispose()

    def put(self, unique: str, *, payload: Any = None, **options: Any) -> None:
        with self._database.begin() as connection:
            outbox.push(connection, payload, topic=TOPIC, id=unique, **options)

    def put_bad(self, fault: str, unique: str) -> None:
        """Any shard refuses the row: its script can't read the window."""
        table = outbox.table
        with self._database.begin() as connection:
            id = outbox.push(connection, None, topic=TOPIC, id=unique, max_attempts=1)
            connection.execute(table.update().where(table.c.id == id).values(dedup=-1))

    def aside(self) -> Mapping[str, str]:
        rows = failed(self._database, outbox.default_outbox)
        return {row.id.removeprefix(f"{TOPIC}/"): row.reason for row in rows}

    def counted(self) -> int:
        [relay] = self._engine.stats().relays
        return relay.failed

    def trouble(self) -> str:
        """The engine's health needs the same Redis, and is made of this."""
        assert self._relay is not None, "it runs"
        return self._relay.stats().problem


class PostgresOutboxWay(OutboxWay):
    """The same in PostgreSQL, where the relay is told of rows."""

    kind = "outbox-postgresql"
    store = "postgres_url"
    patience: ClassVar[Mapping[str, float]] = {**OutboxWay.patience, "shardq.outbox.relay.SLICE_S": 0.05}


class SpoolWay(StoreWay):
    """A file, which takes pushes from the first one on that can't reach Redis."""

    kind = "spool"
    store = "spool_path"
    tells = "Redis can't be reached, commands go to the spool"
    patience: ClassVar[Mapping[str, float]] = {
        "shardq.relay.mover.TRIP_S": TIMEOUT_S,
        "shardq.features.spool.spool.LONGEST_PAUSE_S": 0.4,
        "shardq.features.spool.spool.CLOSE_S": 0.2,
    }
    _engine: Engine | None = None

    def run(self, url: str) -> None:
        self._engine = self.engine(url, spool=self.store_at).open()

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def put(self, unique: str, *, payload: Any = None, **options: Any) -> None:
        assert self._engine is not None, "it runs"
        self._engine.push(payload, topic=TOPIC, id=unique, **options)

    def put_bad(self, fault: str, unique: str) -> None:
        """Any shard refuses the command: its script can't read the window. Nobody replays it before it is so."""
        with locks.alone(lock_of(self.store_at)):
            self.neighbour.kill()
            self.put(unique, max_attempts=1)
            with contextlib.closing(sqlite3.connect(self.store_at)) as file, file:
                file.execute("UPDATE command SET dedup = 'never' WHERE id = ?", (f"{TOPIC}/{unique}",))
        self.neighbour.start()

    def aside(self) -> Mapping[str, str]:
        with contextlib.closing(SpoolFile(self.store_at)) as file:
            return {each.command.id.removeprefix(f"{TOPIC}/"): reason for each, reason, _ in file.failed()}

    def counted(self) -> int:
        assert self._engine is not None, "it runs"
        spool = self._engine.stats().spool
        assert spool is not None, "the engine has one"
        return spool.failed or 0

    def trouble(self) -> str:
        """Health raises where it can't ask the same Redis."""
        assert self._engine is not None, "it runs"
        try:
            reasons = self._engine.health().reasons
        except ShardqError as exc:
            return str(exc)
        return "; ".join(reason for reason in reasons if "wait in the spool" in reason)

    def breaks(self, fault: str) -> str:
        """A push that is refused for want of room, or of a password, raises: only those of an outage are kept, and it
        is their replay that meets the fault.
        """
        options = {"full": ("maxmemory", "1"), "wrong password": ("requirepass", "another")}
        if fault not in options:
            return super().breaks(fault)
        self.neighbour.kill()
        self.put("kept")
        self.neighbour.set(*options[fault])
        self.neighbour.start()
        return self.neighbour.address

    def mends(self, fault: str) -> None:
        if fault == "wrong password":
            self.neighbour.set("requirepass", "")
        else:
            super().mends(fault)


SCHEDULES = 5

INTERVAL_MS = 100

AHEAD_MS = 400
"""No occurrence is pushed sooner before its time, here."""


class DispatcherWay(StoreWay):
    """A part of a dispatcher, which runs when its Redis begins to ask for a password."""

    _engine: Engine | None = None

    def breaks(self, fault: str) -> str:
        if fault != "wrong password":
            return super().breaks(fault)
        self.neighbour.set("requirepass", "another")
        self.neighbour.server.ask("CLIENT", "KILL", "TYPE", "normal")
        return self.neighbour.address

    def mends(self, fault: str) -> None:
        if fault == "wrong password":
            self.neighbour.set("requirepass", "")
        else:
            super().mends(fault)


class ScheduleWay(DispatcherWay):
    """Schedules, and the scheduler that pushes them. An item is an occurrence, the next one that nobody has pushed."""

    kind = "schedules"
    store = "tmp_path"
    tells = "fails, its shards are not dispatched|can't be pushed|not served"
    not_here: ClassVar[Mapping[str, str]] = {
        **StoreWay.not_here,
        "wrong address": "schedules are kept in the engine, and a dispatcher that never reached it does not start",
        "odd ids": "the names of schedules are made of letters, digits and three signs, and ids of these",
    }
    patience: ClassVar[Mapping[str, float]] = {
        "shardq.features.schedules.occurrences.LEAD_MS": AHEAD_MS // 2,
        "shardq.features.schedules.known.LEAD_MS": AHEAD_MS // 2,
        "shardq.features.schedules.occurrences.HORIZON_MS": AHEAD_MS,
        "shardq.features.schedules.scheduler.CALL_TIMEOUT_S": TIMEOUT_S,
    }

    def __init__(self, neighbour: RedisNeighbour, name: str, store: Path) -> None:
        self._awaited: dict[tuple[str, int], str] = {}
        """A schedule and the instant of an occurrence, in ms → the item that it is."""
        self._taken: list[str] = []
        super().__init__(neighbour, name, store)
        for number in range(SCHEDULES):
            self.seen.every(f"s{number}", interval=INTERVAL_MS / 1000, topic=TOPIC, catch_up="all")

    def run(self, url: str) -> None:
        self._engine = self.engine(url)
        self._engine.start()

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def put(self, unique: str, **options: Any) -> None:
        at_ms = (int(time.time() * 1000) + AHEAD_MS) // INTERVAL_MS * INTERVAL_MS
        while True:
            at_ms += INTERVAL_MS
            for number in range(SCHEDULES):
                if (f"s{number}", at_ms) not in self._awaited:
                    self._awaited[f"s{number}", at_ms] = unique
                    return

    def put_large(self, unique: str, size: int) -> None:
        at_ms = int(time.time() * 1000) // INTERVAL_MS * INTERVAL_MS + 10 * INTERVAL_MS
        self._awaited["large", at_ms] = unique
        once, every_s = at_ms / 1000, INTERVAL_MS / 1000
        self.seen.every("large", interval=every_s, start=once, end=once, topic=TOPIC, payload="x" * size)

    def put_bad(self, fault: str, unique: str) -> None:
        """A schedule that can't be read."""
        key = control_keys(self.name).schedules
        self.neighbour.server.ask("HSET", key, unique, "{}", f"{unique}/declared", "{}")

    def arrived(self) -> Sequence[str]:
        consumer = self.seen.consumer(TOPIC)
        for delivery in consumer.claim(100):
            schedule, _, instant = delivery.id.removeprefix(f"{TOPIC}/every-").partition("@")
            at = dt.datetime.fromisoformat(instant)
            unique = self._awaited.get((schedule, round(at.timestamp() * 1000)))
            self._taken += [unique] if unique is not None else []
            consumer.ack(delivery)
        return self._taken

    def aside(self) -> Mapping[str, str]:
        """They are kept in the Redis that is away."""
        assert self._engine is not None, "it runs"
        with contextlib.suppress(ShardqError):
            return {each.name: each.problem for each in self._engine.schedules() if each.problem}
        return {}

    def counted(self) -> int:
        assert self._engine is not None, "it runs"
        schedules = self._engine.stats().schedules
        assert schedules is not None, "it can be asked"
        return len(schedules.unreadable)

    def trouble(self) -> str:
        """Health raises where it can't ask the same Redis."""
        assert self._engine is not None, "it runs"
        try:
            reasons = self._engine.health().reasons
        except ShardqError as exc:
            return str(exc)
        return "; ".join(reason for reason in reasons if "can't be pushed" in reason or "can't be served" in reason)


class FarWay(DispatcherWay):
    """Rows of a far store that are near, and the loader that moves them to Redis."""

    kind = "far-store"
    store = "tmp_path"
    tells = "fails, its shards are not dispatched|can't be loaded|takes nothing from the far store"
    not_here: ClassVar[Mapping[str, str]] = {
        **StoreWay.not_here,
        "wrong address": "a loader is a part of a dispatcher, and one that never reached its Redis does not start",
    }
    patience: ClassVar[Mapping[str, float]] = {
        "shardq.features.far.loader.TRIP_S": TIMEOUT_S,
        "shardq.features.far.loader.PASS_S": 0.02,
    }

    def run(self, url: str) -> None:
        self._engine = self.engine(url, far=self.store_at / "far.db")
        self._engine.start()
        self._table = open_store(str(self.store_at / "far.db"))
        self._packer = RowPacker()
        wait_until(lambda: self._loader() is not None, "the loader runs")
        self._table.open(self.name, 3600.0, time.monotonic() + 10)

    def _loader(self) -> LoaderReport | None:
        assert self._engine is not None, "it runs"
        return EngineAccess(self._engine).running.loader()

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self._table.close()

    def put(self, unique: str, *, payload: Any = None, **options: Any) -> None:
        packed = self._packer.pack(Task(payload, topic=TOPIC, id=unique, delay=600.0, **options))
        self._add(unique, packed["due"], packed["record"])

    def put_bad(self, fault: str, unique: str) -> None:
        """What another program has put there."""
        self._add(unique, int(time.time() * 1000) + 600_000, b"")

    def arrived(self) -> Sequence[str]:
        """Redis' alone: who has no far store is not told by the engine itself."""
        page = TaskStore.page(self.seen._redis, Query.checked(TOPIC), None, 1000, None, time.monotonic() + 10.0)
        return [task.id.removeprefix(f"{TOPIC}/") for task in page]

    def _add(self, unique: str, due: int, record: bytes) -> None:
        row = Row(f"{TOPIC}/{unique}", due, None, record, nonce=0)
        self._table.add([(row, -1, 1 << 50)], time.monotonic() + 10)

    def aside(self) -> Mapping[str, str]:
        said = [text for text in self._problems() if "can't be moved to Redis" in text]
        return {text.split()[2].removeprefix(f"{TOPIC}/"): text.partition(": ")[2] for text in said}

    def counted(self) -> int:
        return len(self.aside())

    def trouble(self) -> str:
        return "; ".join(text for text in self._problems() if "can't be moved to Redis" not in text)

    def _problems(self) -> Sequence[str]:
        report = self._loader()
        return () if report is None else report.problems
