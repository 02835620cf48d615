"""Servers that are out of memory, read-only, loading or gone cause a clear error, and no half-done or lost task."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from cluster.server import Server
from shardq import Engine, PushError, ShardqError, Task, Unanswered, Unavailable
from shardq.errors import OutOfMemory, ReadOnly
from tests.support.engines import SHARDS, Engines
from tests.support.findings import red
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, put, state_of
from tests.support.waiting import wait_until

T = TypeVar("T")


def unhurried(order: Callable[[], T]) -> T:
    """What a call comes to, made again as long as it is over before its server: the patience here is short, and any
    machine stands still now and then.
    """

    def tried() -> list[T]:
        with contextlib.suppress(Unavailable, Unanswered, ReadOnly):
            return [order()]
        return []

    (result,) = wait_until(tried, "the server answers in time")
    return result


def told(order: Callable[[], object], error: type[ShardqError], text: str) -> None:
    """The call, which can't be done, ends in this error with this text, unless the server was silent for its time."""

    def raised() -> bool:
        try:
            order()
        except error as exc:
            if re.search(text, str(exc)):
                return True
            if error not in (Unavailable, Unanswered):
                raise
        except (Unavailable, Unanswered):
            pass
        else:
            raise AssertionError("it was done")
        return False

    wait_until(raised, f"the error is told: {text}")


@pytest.fixture
def engine(engines: Engines, own_server: Server, name: str) -> Engine:
    """On a server that the test may break."""
    return engines.opened(own_server.url, name=name, shards=SHARDS, timeout=10.0)


# ---- out of memory


@pytest.fixture
def full(engine: Engine, own_server: Server) -> Engine:
    """One task in every state on a server that then has no memory left."""
    engine.start()
    for state in ("scheduled", "ready", "leased", "dead"):
        put(engine, state, topic=state, id="one")
    engine.stop()
    own_server.ask("CONFIG", "SET", "maxmemory", "1")
    return engine


def test_a_full_server_takes_no_task(full: Engine, own_server: Server, name: str) -> None:
    with Servers(own_server.url) as servers:
        before = servers.held(name)
        with pytest.raises(
            OutOfMemory, match=r"push was not done: OOM .*; raise its maxmemory, or let consumers drain it"
        ):
            full.push("x")
        with pytest.raises(OutOfMemory, match="push_unique was not done: OOM"):
            full.push("x", id="mine")
        with pytest.raises(PushError) as caught:
            full.push_many([Task(n) for n in range(50)])
        assert len(caught.value.failed) == 50
        assert all(isinstance(reason, OutOfMemory) for reason in caught.value.failed.values())
        with pytest.raises(OutOfMemory):
            full.reschedule("scheduled/one", delay=1)
        assert servers.held(name) == before


def test_a_full_server_dispatches(engine: Engine, own_server: Server) -> None:
    ids = engine.push_many([Task(n, delay=0.2) for n in range(100)])
    engine.start()
    own_server.ask("CONFIG", "SET", "maxmemory", "1")
    consumer = engine.consumer()
    deliveries = claim(consumer, 100)
    assert sorted(d.id for d in deliveries) == sorted(ids)
    consumer.retry(deliveries[:10])
    consumer.bury(deliveries[10:20], "no")
    consumer.ack(deliveries[20:])
    consumer.ack(claim(consumer, 10))
    stats = engine.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 10)
    wait_until(lambda: {shard.poller for shard in engine.stats().shards} == {"running"}, "every poller is well")
    assert any("of its maxmemory of 1 bytes" in reason for reason in engine.health().reasons)


# ---- read-only


def test_a_replica_is_waited_for_and_named(
    engines: Engines, own_server: Server, server_binary: Path, name: str
) -> None:
    engine = engines.make(own_server.url, name=name, shards=SHARDS, timeout=0.5)
    unhurried(engine.open)
    with Server(server_binary, options={"repl-diskless-sync-delay": "0"}) as master:
        master.ask("SET", "untouched", "1")
        own_server.ask("REPLICAOF", "127.0.0.1", master.port)
        wait_until(lambda: own_server.ask("ROLE")[3] == "connected", "it is a replica")
        text = r"within 0\.5 s: READONLY .*; check .* the address is not a replica's"
        told(lambda: engine.push("x"), ReadOnly, text)

        def all_refused() -> bool:
            with pytest.raises(PushError) as caught:
                engine.push_many([Task(n) for n in range(10)])
            reasons = caught.value.failed.values()
            return len(reasons) == 10 and all(isinstance(reason, ReadOnly) for reason in reasons)

        wait_until(all_refused, "each is told that it was a replica")
        assert own_server.ask("DBSIZE") == 1
    own_server.ask("REPLICAOF", "NO", "ONE")
    assert unhurried(
        lambda: engine.push("x")
    )  # its shards are opened anew: what they held went with the data of another master


@pytest.fixture
def unsaved(server_binary: Path) -> Iterator[Server]:
    """A server whose last save to its disk failed: a folder has the name of its file."""
    options = {"save": "3600 1000000", "stop-writes-on-bgsave-error": "yes", "dbfilename": "taken"}
    with Server(server_binary, options=options) as server:
        yield server


def fail_to_save(server: Server) -> None:
    (server.folder / "taken").mkdir()
    server.ask("BGSAVE")
    wait_until(lambda: server.ask("INFO", "persistence")["rdb_last_bgsave_status"] == "err", "the save has failed")


def test_a_master_that_can_not_save(engines: Engines, unsaved: Server, name: str) -> None:
    engine = engines.make(unsaved.url, name=name, shards=SHARDS, timeout=0.5)
    id = unhurried(lambda: engine.push("before", delay=FAR_S, id="before"))
    fail_to_save(unsaved)
    told(lambda: engine.push("x"), ReadOnly, r"within 0\.5 s: MISCONF .*; check that the master can save to its disk")
    assert unhurried(lambda: state_of(engine, id)) == "scheduled"  # to be read it still is
    wait_until(lambda: engine.stats().scheduled == 1, "stats() tells what is there")
    (unsaved.folder / "taken").rmdir()
    unsaved.ask("BGSAVE")
    assert unhurried(lambda: engine.push("x", delay=FAR_S))  # it takes tasks again, when it has saved


def test_too_few_replicas(engines: Engines, own_server: Server, name: str) -> None:
    engine = engines.make(own_server.url, name=name, shards=SHARDS, timeout=0.5)
    unhurried(engine.open)
    own_server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    told(lambda: engine.push("x"), Unavailable, r"push was not done within 0\.5 s: NOREPLICAS")
    own_server.ask("CONFIG", "SET", "min-replicas-to-write", "0")
    assert unhurried(lambda: engine.push("x", delay=FAR_S, id="one"))
    wait_until(lambda: engine.stats().scheduled == 1, "that one is stored, and no other")


# ---- loading


@pytest.fixture
def loader(server_binary: Path) -> Iterator[Server]:
    """A server that takes seconds to load what it holds."""
    options = {"appendonly": "yes", "key-load-delay": "10", "loading-process-events-interval-bytes": "1024"}
    with Server(server_binary, options=options) as server:
        server.ask("DEBUG", "POPULATE", 20_000)
        server.ask("BGREWRITEAOF")
        wait_until(lambda: written(server), "all is written")
        yield server


def written(server: Server) -> bool:
    now = server.ask("INFO", "persistence")
    return bool(now["aof_rewrite_in_progress"] == now["aof_rewrite_scheduled"] == 0)


@pytest.mark.slow
def test_a_server_that_loads_is_waited_for(engines: Engines, loader: Server, name: str) -> None:
    engine = engines.opened(loader.url, name=name, shards=SHARDS, timeout=60.0)
    first = engine.push("x", delay=FAR_S)
    loader.stop()
    loader.launch()
    second = engine.push("y", delay=FAR_S)
    assert [state_of(engine, id) for id in (first, second)] == ["scheduled", "scheduled"]
    loader.wait_answering()


@pytest.mark.slow
def test_a_server_that_loads_for_too_long(engines: Engines, loader: Server, name: str) -> None:
    engine = engines.make(loader.url, name=name, shards=SHARDS, timeout=0.15)
    unhurried(engine.open)
    loader.stop()
    loader.launch()

    def loads() -> bool:
        try:
            engine.push("x")
        except Unanswered:
            return False
        except Unavailable as exc:
            said = str(exc).rpartition(";")[2].strip()
            return said == "the server is loading its data: try again later, or with a longer timeout"
        # we stood still as long as that took
        loader.stop()
        loader.launch()
        return False

    wait_until(loads, "the error says that the server loads")
    loader.wait_answering()


# ---- gone


def test_a_server_that_was_never_there(engines: Engines, name: str) -> None:
    engine = engines.make("redis://127.0.0.1:1", name=name, connect_timeout=0.2)
    with pytest.raises(
        Unavailable, match=r"could not connect within 0\.2 s: .*; check that the server runs and can be"
    ):
        engine.push("x")
    with pytest.raises(Unavailable):
        engine.open()


def test_a_server_that_went(engines: Engines, own_server: Server, name: str) -> None:
    engine = engines.make(own_server.url, name=name, shards=SHARDS, timeout=0.4)
    unhurried(lambda: engine.push("x", delay=FAR_S, id="one"))
    consumer = engine.consumer()
    own_server.kill()
    for order in (
        lambda: engine.push("y"),
        lambda: engine.push_many([Task("y")]),
        lambda: list(engine.push_iter([Task("y")])),
        lambda: engine.get("one"),
        lambda: engine.cancel("one"),
        consumer.claim,
    ):
        with pytest.raises(
            (Unavailable, Unanswered, PushError), match=r"was not done within 0\.4 s|unknown|no later try"
        ):
            order()
    # a look still looks: it says of every shard that it can't be seen
    health = engine.health()
    stats = health.stats
    assert all("Unavailable" in str(shard.error) for shard in stats.shards)
    assert len(stats.shards) == SHARDS
    assert not health
    own_server.start()
    assert unhurried(lambda: state_of(engine, "one")) == "scheduled"


def test_an_outage_is_no_matter_of_schedules_where_there_are_none(engine: Engine, own_server: Server) -> None:
    engine.start()
    wait_until(lambda: engine.health(), "it is well")
    own_server.kill()
    for _ in range(2):  # each look takes a while, in which the scheduler meets it, too
        wait_until(lambda: {"unseen_shards", "failing_poller"} <= {*red(engine.health())}, "it is noticed")
        assert "failing_schedule" not in red(engine.health())


def test_a_server_whose_data_is_gone(engine: Engine, own_server: Server) -> None:
    engine.start()
    engine.push("x", delay=FAR_S)
    own_server.ask("FLUSHALL")
    # Never a silent nothing: the engine opens its shards anew, and goes on.
    id = engine.push("y")
    (delivery,) = claim(engine.consumer(), 1)
    assert delivery.id == id
    wait_until(lambda: engine.health().ok, "every poller is well")
