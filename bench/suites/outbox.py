"""A relay that moves the rows of an outbox, in PostgreSQL, to a server that keeps an append-only file and writes it to
the disk each second. A row leaves the table when the disk has its task.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.figures import Figure, client_cost, rate
from bench.loads import PAYLOAD
from bench.stand import Stand, Suite
from cluster.postgres import Postgres
from cluster.server import Server
from shardq import Engine, Task, outbox
from shardq.outbox import OutboxRelay
from shardq.relay.database import open_database, waiting

KEPT = {"appendonly": "yes", "appendfsync": "everysec"}
LOOK_S = 0.1


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(10_000, 200_000)
    stand.say(f"an outbox with {count:,} rows")
    with Postgres() as postgres, Server(stand.masters[0].binary, options=KEPT) as server:
        database = open_database(postgres.make_database("outbox"))
        outbox.create(database)
        with Engine(server.url, name="outbox", shards=16) as engine:
            engine.open()
            for _ in range(0, count, 5000):
                with database.begin() as connection:
                    outbox.push_many(connection, [Task(PAYLOAD, delay=3600) for _ in range(5000)])
            with stand.metering() as spent, OutboxRelay(engine, database) as relay:
                while waiting(database, relay.outbox).rows:
                    time.sleep(LOOK_S)
            yield rate("outbox: rows moved and confirmed, everysec", count, spent)
            yield client_cost("outbox: a row", count, spent)
        database.dispose()


SUITE = Suite("outbox", "rows of an outbox that a relay moves, as far as the disk has their tasks", _measure)
