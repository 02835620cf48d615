"""A relay that moves the rows of an outbox, in PostgreSQL, to a server that writes its append-only file to the disk
each second, or with each write, or that has a replica. A row leaves the table when the disk, or the replica, has its
task. PostgreSQL runs on the clients' core, without fsync, and so does the replica.
"""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from bench.figures import Figure, client_cost, rate, server_cost
from bench.loads import PAYLOAD
from bench.stand import LOOK_S, Stand, Suite
from cluster.postgres import Postgres
from cluster.server import Server
from shardq import Task, outbox
from shardq.outbox import OutboxRelay
from shardq.relay.database import open_database


def _measure(stand: Stand) -> Iterator[Figure]:
    (master,) = stand.masters
    with Postgres() as postgres:
        for policy in ("everysec", "always"):
            master.ask("CONFIG", "SET", "appendonly", "yes")
            master.ask("CONFIG", "SET", "appendfsync", policy)
            yield from _moving(stand, postgres, policy)
        master.ask("CONFIG", "SET", "appendonly", "no")
        with Server(master.binary, options={"replicaof": f"127.0.0.1 {master.port}"}) as replica:
            client = replica.client(decode=True)
            stand.until(lambda: client.info("replication")["master_link_status"] == "up", "the replica is there")
            yield from _moving(stand, postgres, "replica")


def _moving(stand: Stand, postgres: Postgres, barrier: str) -> Iterator[Figure]:
    count = stand.pick(10_000, 200_000)
    stand.say(f"an outbox with {count:,} rows, {barrier}")
    database = open_database(postgres.make_database(barrier))
    outbox.create(database)
    for _ in range(0, count, 5000):
        with database.begin() as connection:
            outbox.push_many(connection, [Task(PAYLOAD, delay=3600) for _ in range(5000)])
    with stand.engine() as engine, OutboxRelay(engine, database) as relay:
        before_s = _cpu_s(postgres)
        with stand.metering() as spent:
            stand.until(lambda: relay.moved >= count, "all are moved", look_s=10 * LOOK_S)
        of_database = _cpu_s(postgres) - before_s
    database.dispose()
    name = f"outbox, {barrier}: a row"
    yield rate(f"outbox, {barrier}: rows moved and confirmed", count, spent)
    yield client_cost(name, count, spent)
    yield server_cost(name, count, spent)
    yield Figure(f"{name}: PostgreSQL CPU", of_database / count * 1e6, "µs/task")


def _cpu_s(postgres: Postgres) -> float:
    """The CPU time of all its processes, those that have ended included."""
    leader = psutil.Process(postgres.pids[0])
    ended = leader.cpu_times()
    each = [ended, *(process.cpu_times() for process in leader.children())]
    return float(ended.children_user + ended.children_system + sum(times.user + times.system for times in each))


SUITE = Suite("outbox", "rows of an outbox that a relay moves, as far as disk or replica have their tasks", _measure)
