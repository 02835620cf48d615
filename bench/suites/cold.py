"""The cold store: pushes of far tasks beside what the database itself does, commands on them, and how fast they are
loaded. In PostgreSQL, without fsync, as all servers here keep nothing; it runs on the clients' core. Nothing is
prepared, as through a pooler.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

import psycopg

from bench.figures import Figure, Spent, median, middle, percentiles, rate
from bench.loads import PAYLOAD
from bench.stand import Stand
from bench.suite import Suite
from cluster.postgres import Postgres
from shardq import Engine, Task
from shardq.engine.base import Inside
from shardq.features.cold import statements as sql
from shardq.features.cold.ids import HOUR_MS
from shardq.features.cold.rows import Horizon

DAY_S = 86_400.0
SPREAD_S = 30 * DAY_S
FIRST_S = 2 * DAY_S
ROUNDS = 5
BATCH = 5_000


def _measure(stand: Stand) -> Iterator[Figure]:
    count, singles = stand.pick(5_000, 100_000), stand.pick(50, 1_000)
    source = random.Random(count)
    delays = [FIRST_S + source.uniform(0, SPREAD_S) for _ in range(count)]
    with Postgres() as postgres:
        url = postgres.make_database("cold")
        with (
            Engine(stand.url, name="cold", shards=16, cold=url) as engine,
            psycopg.connect(url.replace("+psycopg", ""), autocommit=True, prepare_threshold=None) as bare,
        ):
            engine.push_many([Task(PAYLOAD, delay=FIRST_S + day * DAY_S) for day in range(31)])
            bare.execute(f"CREATE TABLE bare (LIKE {sql.COLD} INCLUDING ALL)".encode())
            stand.say(f"cold store, {count:,} tasks in {ROUNDS} rounds")
            ours: list[Spent] = []
            theirs: list[Spent] = []
            for number in range(ROUNDS):
                with stand.metering() as spent:
                    ids = engine.push_many([Task(PAYLOAD, delay=delay) for delay in delays])
                ours.append(spent)
                with stand.metering() as spent:
                    _copy(bare, delays, number)
                theirs.append(spent)
            fastest = count / middle(theirs).wall_s
            yield rate(
                "cold, push_many of far tasks",
                count,
                middle(ours),
                reference=f"a bare COPY of such rows: {fastest:,.0f}/s; aim: ≥ 0.8",
                ratio=count / middle(ours).wall_s / fastest,
            )
            one = median(_times(lambda: engine.push(PAYLOAD, delay=FIRST_S + source.uniform(0, SPREAD_S)), singles))
            alone = median(_times(lambda: _insert(bare, source), singles))
            yield Figure(
                "cold, push of a far task",
                one * 1000,
                "ms",
                reference=f"a bare INSERT: {alone * 1000:.3f} ms; aim: ≤ 1.5",
                ratio=one / alone,
            )
            for name, call in (("get", engine.get), ("cancel", engine.cancel)):
                times = _times_of(call, source.sample(ids, singles))
                found = percentiles([each * 1000 for each in times])
                yield Figure(f"cold, {name} of a far task", found["p50"], "ms", found, "aim: p99 ≤ 2")
            store = engine._cold_store.store  # type: ignore[union-attr]  # it has one
            store.horizon = Horizon(400 * 24 * HOUR_MS)  # all of it is near now
            with stand.metering() as spent:
                loaded = Inside(engine).load_cold().loaded
            yield rate("cold, loaded into 16 shards", loaded, spent, reference=f"{loaded:,} of them; aim: ≥ 20,000")


def _times_of(call: Callable[[str], object], ids: Sequence[str]) -> list[float]:
    left = iter(ids)
    return _times(lambda: call(next(left)), len(ids))


def _times(call: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times


def _copy(bare: psycopg.Connection[tuple[object, ...]], delays: list[float], number: int) -> None:
    """The same rows, as COPY takes them."""
    now_ms = time.time() * 1000
    record = b"\x11" + PAYLOAD.encode()
    statement = f"COPY bare ({sql.COLUMNS}) FROM STDIN (FORMAT BINARY)".encode()
    for begin in range(0, len(delays), BATCH):
        with bare.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(("int4", "int8", "int8", "text", "text", "bytea"))
            for at, delay in enumerate(delays[begin : begin + BATCH], number << 32 | begin):
                due = int(now_ms + delay * 1000)
                copy.write_row((due // HOUR_MS, at, due, "", None, record))


def _insert(bare: psycopg.Connection[tuple[object, ...]], source: random.Random) -> None:
    due = int(time.time() * 1000 + source.uniform(0, SPREAD_S) * 1000)
    values = (due // HOUR_MS, source.getrandbits(47), due, "", None, PAYLOAD.encode())
    bare.execute(f"INSERT INTO bare ({sql.COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)".encode(), values)


SUITE = Suite("cold", "far tasks in PostgreSQL: pushes, commands, loading", _measure)
