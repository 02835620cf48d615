"""The far store: pushes of far tasks beside what the database itself does, commands on them, and how fast they are
loaded. In PostgreSQL, without fsync, as all servers here keep nothing; it runs on the clients' core. Nothing is
prepared, as through a pooler.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import psycopg

from bench.figures import Figure, Spent, lateness, median, middle, percentiles, rate
from bench.loads import PAYLOAD
from bench.stand import Stand, Suite
from bench.suites.lateness import claimed
from cluster.postgres import Postgres
from shardq import Engine, Task
from shardq.core.model.ids import Ids
from shardq.features.far import statements as sql
from shardq.features.far.postgres import packed
from shardq.features.far.rows import Row, far_id
from shardq.features.far.store import Store

DAY_S = 86_400.0
SPREAD_S = 30 * DAY_S
FIRST_S = 2 * DAY_S
ROUNDS = 5
BATCH = 5_000


def _measure(stand: Stand) -> Iterator[Figure]:
    marks = stand.pick([5_000], [1_000_000, 5_000_000], [1_000_000, 10_000_000, 100_000_000])
    with Postgres() as postgres:
        url = postgres.make_database("far")
        with (
            Engine(stand.url, name="far", shards=16, far=url, timeout=60) as engine,
            psycopg.connect(url.replace("+psycopg", ""), autocommit=True, prepare_threshold=None) as bare,
        ):
            engine.push_many([Task(PAYLOAD, delay=FIRST_S)])
            bare.execute(f"CREATE TABLE bare (LIKE {sql.TABLE} INCLUDING ALL)".encode())
            table = _Table(stand, engine, bare)
            for mark in marks:
                table.fill(mark)
                yield from table.pushes(mark)
                yield from table.commands(mark)
                yield from table.sizes(mark)
            yield from _loading(stand, engine, stand.pick(4_000, 400_000))


class _Table:
    """The table of an engine beside a bare one, and what is measured at each number of rows."""

    def __init__(self, stand: Stand, engine: Engine, bare: psycopg.Connection[tuple[object, ...]]) -> None:
        self._stand, self._engine, self._bare = stand, engine, bare
        self._source = random.Random(0)
        self._rows = 0
        self._ids: Sequence[str] = []
        """The last ones."""
        self._per_round, self._singles = stand.pick(1_000, 100_000), stand.pick(50, 1_000)

    def _push(self, count: int) -> None:
        self._ids = self._engine.push_many([Task(PAYLOAD, delay=self._delay()) for _ in range(count)])
        self._rows += count

    def _delay(self) -> float:
        return FIRST_S + self._source.uniform(0, SPREAD_S)

    def fill(self, mark: int) -> None:
        while (left := mark - self._rows) > 0:
            if self._rows % 1_000_000 == 0:
                self._stand.say(f"far store, {self._rows:,} of {mark:,} far tasks")
            self._push(min(left, self._per_round))
        for table in (sql.TABLE, "bare"):
            self._bare.execute(f"ANALYZE {table}".encode())  # as autovacuum has done it by then

    def pushes(self, mark: int) -> Iterator[Figure]:
        self._stand.say(f"far store, pushes beside {mark:,} far tasks")
        ours: list[Spent] = []
        theirs: list[Spent] = []
        for _ in range(ROUNDS):
            with self._stand.metering() as spent:
                self._push(self._per_round)
            ours.append(spent)
            delays = [self._delay() for _ in range(self._per_round)]
            with self._stand.metering() as spent:
                _copy(self._bare, delays)
            theirs.append(spent)
        pushed, fastest = self._per_round / middle(ours).wall_s, self._per_round / middle(theirs).wall_s
        yield rate(
            f"far, push_many beside {mark:,} far tasks",
            self._per_round,
            middle(ours),
            reference=f"a bare COPY of such rows: {fastest:,.0f}/s; aim: ≥ 0.55",
            ratio=pushed / fastest,
            at={"pending": mark},
        )
        one, alone = [], []
        for _ in range(self._singles):
            delay = self._delay()
            one.append(_time(partial(self._engine.push, PAYLOAD, delay=delay)))
            alone.append(_time(lambda: _insert(self._bare, self._source)))
        yield Figure(
            f"far, push beside {mark:,} far tasks",
            median(one) * 1000,
            "ms",
            reference=f"a bare INSERT: {median(alone) * 1000:.3f} ms; aim: ≤ 1.5",
            ratio=median(one) / median(alone),
            at={"pending": mark},
        )

    def commands(self, mark: int) -> Iterator[Figure]:
        for name, call in (("get", self._engine.get), ("cancel", self._engine.cancel)):
            times = [_time(partial(call, id)) * 1000 for id in self._source.sample(self._ids, self._singles)]
            found = percentiles(times)
            title = f"far, {name} beside {mark:,} far tasks"
            yield Figure(title, found["p50"], "ms", found, "aim: p99 ≤ 2", at={"pending": mark})

    def sizes(self, mark: int) -> Iterator[Figure]:
        """What the far tasks take."""
        size = "SELECT pg_total_relation_size(%s::regclass)"
        [(taken,)] = self._bare.execute(size, (sql.TABLE,)).fetchall()
        at = {"pending": mark}
        yield Figure(f"far, disk of a far task, of {mark:,}", int(str(taken)) / self._rows, "bytes", at=at)
        memory = self._stand.memory() / 1e6
        yield Figure(f"far, RAM of Redis beside {mark:,} far tasks", memory, "MB", reference="aim: ≤ 100", at=at)


def _loading(stand: Stand, engine: Engine, count: int) -> Iterator[Figure]:
    """Loads what comes near, beside dispatch in the same process, as in a service."""
    name, tasks = "far, due → claimed by the process that loads", stand.pick(50, 500)
    stand.say("far store, dispatch without loading")
    engine.start()
    alone = lateness(name, claimed(engine, tasks), expected=tasks, aim="", at={"loaded": 0})
    yield alone
    stand.say(f"far store, dispatch while {count:,} tasks are loaded")
    store = _store(engine)
    before = _loaded(engine)
    with ThreadPoolExecutor(1) as pool, stand.metering() as spent:
        late_ms = pool.submit(claimed, engine, tasks)
        _take_for_near(store, _due_of(engine, count) - store.now_ms)
        stand.until(lambda: _loaded(engine) - before >= count, "all that is near is loaded", look_s=0.1)
    loaded = _loaded(engine) - before
    yield rate("far, loaded into 16 shards", loaded, spent, reference=f"{loaded:,} of them; aim: ≥ 20,000")
    aim = "aim: p99 ≤ 1.5 of that without"
    beside = lateness(name, late_ms.result(), expected=tasks, aim=aim, at={"loaded": loaded})
    yield replace(beside, ratio=beside.percentiles["p99"] / alone.percentiles["p99"])


def _take_for_near(store: Store, ms: float) -> None:
    """What is due within so many ms is near from now on: without the time that a change of ``ahead`` takes."""
    change = f"UPDATE {sql.OWNER} SET ahead = {ms / 1000}, former = {ms / 1000}"
    store.attempt(lambda session, _: session.change(change), time.monotonic() + 60)


def _store(engine: Engine) -> Store:
    assert engine._far is not None
    return engine._far.store


def _loaded(engine: Engine) -> int:
    report = engine._running.loader()  # its own count: stats() counts the table, which others would wait for
    assert report is not None
    return report.loaded


def _due_of(engine: Engine, count: int) -> int:
    """The instant before which at least so many tasks are due."""
    statement = f"SELECT due FROM {sql.TABLE} WHERE NOT gone ORDER BY due, id LIMIT 1 OFFSET {count}"
    [(due,)] = _store(engine).attempt(lambda session, _: session.run_in_order(statement), time.monotonic() + 60)
    return int(due) + 1


def _time(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


_ids = Ids()


def _copy(bare: psycopg.Connection[tuple[object, ...]], delays: list[float]) -> None:
    """The same rows, as COPY takes them, packed before."""
    now_ms = time.time() * 1000
    record = b"\x11" + PAYLOAD.encode()
    rows = [
        Row(far_id(id), int(now_ms + delay * 1000), None, record)
        for id, delay in zip(_ids.many(len(delays)), delays, strict=True)
    ]
    for begin in range(0, len(rows), BATCH):
        with bare.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.write(packed(rows[begin : begin + BATCH]))


_COPY = b"COPY bare (due, id, tags, record) FROM STDIN (FORMAT BINARY)"


def _insert(bare: psycopg.Connection[tuple[object, ...]], source: random.Random) -> None:
    due = int(time.time() * 1000 + source.uniform(0, SPREAD_S) * 1000)
    values = (far_id(_ids.one()), due, None, PAYLOAD.encode())
    bare.execute(b"INSERT INTO bare (id, due, tags, record) VALUES (%s, %s, %s, %s)", values)


SUITE = Suite("far", "far tasks in PostgreSQL: pushes, commands, loading", _measure)
