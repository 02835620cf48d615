"""The far store through a pooler in transaction mode, whose clients share two connections to the database."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from cluster.pgbouncer import PgBouncer
from cluster.postgres import Postgres
from shardq import Engine, Outcome, Task
from tests.far.conftest import soon
from tests.support.waiting import wait_until

__all__ = ["soon"]

FAR_S = 30 * 86_400.0
THREADS, EACH = 8, 100


@pytest.fixture(scope="module")
def pooler(postgres: Postgres) -> Iterator[PgBouncer]:
    with PgBouncer(postgres) as pooler:
        yield pooler


@pytest.fixture
def database(postgres: Postgres) -> str:
    name = f"d{uuid.uuid4().hex}"
    postgres.make_database(name)
    return name


def test_many_clients_share_two_connections(
    url: str, name: str, pooler: PgBouncer, postgres: Postgres, database: str
) -> None:
    with Engine(url, name=name, shards=4, far=pooler.url(database), timeout=30) as engine:

        def work(number: int) -> list[str]:
            kept = []
            for each in range(EACH):
                one = engine.push(each, delay=FAR_S)
                other = engine.push(each, topic="mail", delay=FAR_S)
                assert engine.get(one) is not None
                assert engine.reschedule(one, delay=2 * FAR_S) is Outcome.MOVED
                if each % 2:
                    assert [engine.cancel(one), engine.cancel(other)] == [Outcome.CANCELLED] * 2
                else:
                    kept += [one, other]
            return [*kept, *engine.push_many([Task(each, delay=FAR_S) for each in range(EACH)])]

        with ThreadPoolExecutor(THREADS) as pool:
            kept = {id for ids in pool.map(work, range(THREADS)) for id in ids}
        assert listed(engine) == kept
        assert engine.stats().far.tasks == len(kept) == 2 * THREADS * EACH  # type: ignore[union-attr]
        with psycopg.connect(postgres.url(database).replace("+psycopg", "")) as direct:
            [(connections,)] = direct.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND backend_type = 'client backend'"
            ).fetchall()
        assert connections <= 2
        assert engine.purge(everything=True) == len(kept)


def listed(engine: Engine) -> set[str]:
    found = set[str]()
    page = engine.tasks(limit=1000)
    found.update(each.id for each in page)
    while page.cursor is not None:
        page = engine.tasks(limit=1000, cursor=page.cursor)
        found.update(each.id for each in page)
    return found


@pytest.mark.usefixtures("soon")
def test_what_falls_due_is_loaded(url: str, name: str, pooler: PgBouncer, database: str) -> None:
    with Engine(url, name=name, shards=4, far=pooler.url(database), ahead=2, timeout=30) as engine:
        begin = time.time()
        ids = engine.push_many([Task(n, delay=5 + n / 250) for n in range(500)])
        assert engine.stats().far.tasks == 500  # type: ignore[union-attr]
        engine.start()
        consumer = engine.consumer()
        handled: list[str] = []

        def handle() -> bool:
            deliveries = consumer.claim(100, wait=0.2)
            handled.extend(each.id for each in deliveries)
            consumer.ack(deliveries)
            return len(handled) >= len(ids)

        wait_until(handle, "all are handled", timeout=30)
        assert sorted(handled) == sorted(ids)
        assert time.time() - begin > 5
        assert engine.stats().far.tasks == 0  # type: ignore[union-attr]


def test_a_pooler_that_dies_and_comes_back(url: str, name: str, pooler: PgBouncer, database: str) -> None:
    with Engine(url, name=name, shards=4, far=pooler.url(database), timeout=30) as engine:
        far = engine.push("far", delay=FAR_S)
        pooler.kill()
        pooler.start()
        assert engine.get(far) is not None
        assert engine.push("another", delay=FAR_S)
        assert engine.cancel(far) is Outcome.CANCELLED
