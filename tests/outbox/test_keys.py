"""Tasks with keys from an outbox."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from cluster.server import Server
from shardq import Engine, Task, outbox
from shardq.cli.acl import rules
from shardq.features.far.rows import is_made
from shardq.outbox import OutboxRelay
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until

LONGEST = Task(1, topic="t" * 64, key="k" * 200, id="u" * 200, delay=FAR_S)


def moved(engine: Engine, database: sa.Engine) -> None:
    """Moves all rows."""
    with closing(OutboxRelay(engine, database)) as relay:
        while relay.step():
            pass


def test_they_come_one_at_a_time(engine: Engine, database: sa.Engine) -> None:
    """The relay takes up the engine's first key."""
    with database.begin() as connection:
        ids = [outbox.push(connection, n, topic="webhook", key="customer-7", id=f"order-{n}") for n in range(3)]
        gone = outbox.push(connection, "gone", topic="webhook", key="customer-7", delay=FAR_S)
        assert outbox.push_many(connection, [Task("mine", key="customer-7", id="mine", delay=FAR_S)]) == [
            "/customer-7/mine"
        ]
    assert is_made(gone)
    assert gone.startswith("webhook/customer-7/")
    moved(engine, database)
    assert state_of(engine, gone) == "scheduled"
    with database.begin() as connection:
        outbox.cancel(connection, gone)
        outbox.cancel(connection, "/customer-7/mine")
    moved(engine, database)
    assert state_of(engine, gone) == state_of(engine, "/customer-7/mine") == "gone"
    engine.start()
    consumer = engine.consumer("webhook")
    for id in ids:
        [delivery] = claim(consumer, 1)
        assert delivery.id == id
        assert consumer.claim(2) == []
        consumer.ack(delivery)


def test_the_longest_id_has_room(engine: Engine, database: sa.Engine) -> None:
    with database.begin() as connection:
        id = outbox.push(connection, LONGEST)
    assert len(id) == 466
    moved(engine, database)
    assert state_of(engine, id) == "scheduled"


def test_who_may_not_begin_with_keys_moves_all_others(server_binary: Path, database: sa.Engine, name: str) -> None:
    with (
        Server(server_binary) as server,
        Engine(server.url, name=name, shards=1) as admin,
    ):
        admin.open()
        server.ask("ACL", "SETUSER", "shop", "nopass", *rules(["producer"], name=name))
        with database.begin() as connection:
            keyed = outbox.push(connection, 1, key="k", delay=FAR_S, id="mine")
            plain = outbox.push(connection, 1, delay=FAR_S, id="plain")
        with (
            Engine(f"redis://shop:x@{server.address}", name=name) as engine,
            OutboxRelay(engine, database) as relay,
        ):
            wait_until(lambda: state_of(admin, plain) == "scheduled", "the other is moved")
            wait_until(lambda: "engine.limit" in relay.problem, "it says what to do")
            assert state_of(admin, keyed) == "gone"
            admin.limit("t", per_key=1)
            wait_until(lambda: state_of(admin, keyed) == "scheduled", "it is moved", timeout=60)
            wait_until(lambda: not relay.problem, "nothing is left")
