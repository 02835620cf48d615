"""A master killed before its replica had its last writes, and the replica promoted. An engine with ``replay=`` sends
again what is missing; one without has lost it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine, Outcome, Task
from shardq.engine.access import EngineAccess
from tests.failover.conftest import Service
from tests.support.engines import Engines
from tests.support.servers import keys_of
from tests.support.states import FAR_S, claim, counted
from tests.support.waiting import wait_until

SHARDS = 6

MANY = 2000

PROMOTED_S = 75.0
"""It takes two to five; a sentinel that stood still for two does nothing for another 30."""

TIMEOUT_S = PROMOTED_S + 15

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def replicated(master: Server, replica: Server) -> None:
    """The replica has all that the master has now."""
    offset = int(master.ask("ROLE")[1])
    wait_until(lambda: int(replica.ask("ROLE")[4]) >= offset, "the replica has everything")


@contextmanager
def losing(master: Server, replica: Server) -> Iterator[None]:
    """What is written during the block is lost: the master is killed at its end, and the replica, which heard nothing
    of that, is promoted.
    """
    replicated(master, replica)
    # The replica could still read what was sent to it.
    replica.pause()
    try:
        master.ask("CLIENT", "KILL", "TYPE", "replica")
        yield
        master.kill()
    finally:
        replica.resume()
    wait_until(lambda: _is_master(replica), "the replica is promoted", timeout=PROMOTED_S)


def _is_master(server: Server) -> bool:
    try:
        return bool(server.ask("ROLE")[0] == "master")
    except (redis.ConnectionError, redis.TimeoutError):
        return False  # a sentinel ends its connections with the promotion


def replays(engine: Engine) -> int:
    replay = engine.stats().replay
    assert replay is not None
    return replay.replays


def missing(engine: Engine, ids: list[str]) -> list[str]:
    return [id for id in ids if engine.get(id) is None]


def test_without_it_pushes_are_lost(own_cluster: Cluster, name: str) -> None:
    with Engine(own_cluster.url, name=name, shards=SHARDS, timeout=TIMEOUT_S) as engine:
        first = keys_of(name, SHARDS)[0]
        master = own_cluster.node_of_slot(first.slot)
        (replica,) = own_cluster.replicas_of(master)
        with losing(master, replica):
            ids: list[str] = [*engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)])]
        assert missing(engine, ids)
        assert engine.stats().replay is None


@pytest.fixture
def pair(service: Service, name: str) -> tuple[Server, Server]:
    """The master of shard 0, and its replica."""
    return service.pair(keys_of(name, SHARDS)[0].slot)


@pytest.mark.parametrize(
    ("service", "engines"), [("cluster", "sync"), ("sentinel", "sync"), ("cluster", "asyncio")], indirect=True
)
def test_nothing_is_lost(engines: Engines, service: Service, name: str, pair: tuple[Server, Server]) -> None:
    """Pushes, with and without ids of their own, cancels and reschedules: each as it was acknowledged last."""
    engine = engines.opened(service.url, name=name, shards=SHARDS, timeout=TIMEOUT_S, replay=10)
    engine.configure(done_age=600)
    old: list[str] = [*engine.push_many([Task(n, delay=FAR_S) for n in range(60)])]
    engine.push_many([Task("old", id=f"own-{n}", delay=FAR_S) for n in range(20)])
    later = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=3 * FAR_S)
    with losing(*pair):
        ids: list[str] = [*engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)])]
        ids += [receipt for some in engine.push_iter([Task(n, delay=FAR_S) for n in range(MANY)]) for receipt in some]
        ids += [engine.push(n, delay=FAR_S) for n in range(20)]
        ids += [engine.push(n, id=f"mine-{n}", topic="mail", delay=FAR_S) for n in range(20)]
        cancelled = [*old[:30], *ids[:30], *(f"own-{n}" for n in range(15))]
        assert {engine.cancel(id) for id in cancelled} == {Outcome.CANCELLED}
        moved = [*old[30:], *ids[30:60]]
        assert {engine.reschedule(id, at=later) for id in moved} == {Outcome.MOVED}
        for n in range(10):
            # over a cancel, which is lost too, and over a task
            engine.push("new", id=f"own-{10 + n}", delay=FAR_S, on_conflict="replace")
    wait_until(lambda: replays(engine) >= 1, "the new master was looked through")
    stats = counted(engine)
    assert stats.replay is not None
    assert stats.replay.replayed > 0
    assert (stats.replay.late, stats.replay.dropped) == (0, 0)
    assert missing(engine, ids[30:]) == []
    assert missing(engine, [*old, *ids[:30], *(f"own-{n}" for n in range(10))]) == cancelled[:70]
    ends = [engine.get(id, ended=True) for id in old[:30]]
    assert [end.state for end in ends if end] == ["cancelled"] * 30
    dues = [info.due for id in moved if (info := engine.get(id)) and info.due]
    assert len(dues) == len(moved)
    assert max(abs((due - later).total_seconds()) for due in dues) < 0.002
    payloads = [info.payload for n in range(20) if (info := engine.get(f"own-{n}"))]
    assert payloads == ["new"] * 10
    assert stats.scheduled == len(ids) - 30 + len(old) - 30 + 10


def test_a_master_that_hung(own_cluster: Cluster, name: str) -> None:
    """It is alive when its replica is promoted, and hears of that when it goes on."""
    with Engine(own_cluster.url, name=name, shards=SHARDS, timeout=TIMEOUT_S, replay=10) as engine:
        master = own_cluster.node_of_slot(keys_of(name, SHARDS)[0].slot)
        (replica,) = own_cluster.replicas_of(master)
        replicated(master, replica)
        replica.pause()
        master.ask("CLIENT", "KILL", "TYPE", "replica")
        ids = engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)])
        master.pause()
        replica.resume()
        wait_until(lambda: _is_master(replica), "the replica is promoted", timeout=PROMOTED_S)
        more = engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)])
        wait_until(lambda: replays(engine) >= 1, "the new master was looked through")
        master.resume()
        assert missing(engine, [*ids, *more]) == []
        assert counted(engine).scheduled == 2 * MANY


def test_what_is_done_and_replicated_does_not_run_again(own_cluster: Cluster, name: str) -> None:
    """Only what was acknowledged after the last look that the new master has the writes of is sent again."""
    with Engine(own_cluster.url, name=name, shards=SHARDS, timeout=TIMEOUT_S, replay=60) as engine:
        engine.start()
        done = engine.push_many([Task(n) for n in range(MANY)])
        consumer = engine.consumer()
        deliveries = claim(consumer, MANY)
        assert sorted(each.id for each in deliveries) == sorted(done)
        consumer.ack(deliveries)
        master = own_cluster.node_of_slot(keys_of(name, SHARDS)[0].slot)
        (replica,) = own_cluster.replicas_of(master)
        replicated(master, replica)
        looked(engine)
        replicated(master, replica)
        with losing(master, replica):
            ids = engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)])
        wait_until(lambda: replays(engine) >= 1, "the new master was looked through")
        assert missing(engine, [*ids]) == []
        stats = counted(engine)
        assert (stats.scheduled, stats.ready, stats.leased) == (MANY, 0, 0)


def test_cancels_are_replayed_before_pollers_of_this_process_dispatch(own_cluster: Cluster, name: str) -> None:
    """The tasks are due when the replica is promoted, and the pollers are there at once."""
    with Engine(own_cluster.url, name=name, shards=SHARDS, timeout=TIMEOUT_S, replay=10) as engine:
        engine.start()
        master = own_cluster.node_of_slot(keys_of(name, SHARDS)[0].slot)
        (replica,) = own_cluster.replicas_of(master)
        its = [keys for keys in keys_of(name, SHARDS) if own_cluster.node_of_slot(keys.slot) is master]
        due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=10)
        ids = engine.push_many([Task(n, at=due) for n in range(300)])
        shards = {keys.shard for keys in its}
        soon = [id for id in ids if engine.topology.shard_of(id) in shards]
        before = [master.ask("HGET", keys.topics, "") for keys in its]
        with losing(master, replica):
            assert {engine.cancel(id) for id in soon} == {Outcome.CANCELLED}
            wait_until(lambda: dt.datetime.now(dt.UTC) > due, "the tasks are due")
        wait_until(lambda: replays(engine) >= 1, "the new master was looked through")
        assert missing(engine, [*soon]) == soon
        wait_until(lambda: counted(engine).ready == len(ids) - len(soon), "the others are dispatched")
        assert [replica.ask("HGET", keys.topics, "") for keys in its] == before


def test_a_server_that_kept_nothing(server_binary: Path, engines: Engines, name: str) -> None:
    """The same address, and all of its data gone: the last seconds are stored again."""
    with Server(server_binary) as server:
        engine = engines.opened(server.url, name=name, shards=SHARDS, timeout=TIMEOUT_S, replay=10)
        ids = [*engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)]), engine.push(0, id="mine", delay=FAR_S)]
        engine.cancel(ids[0])
        looked(engine)  # a server that was never seen before its restart is not known to be another one
        server.kill()
        server.restart()
        wait_until(lambda: replays(engine) >= 1, "the server was looked through")
        assert missing(engine, [*ids]) == [ids[0]]


def test_a_server_that_kept_everything(own_server: Server, name: str) -> None:
    """The same address, and all of its data there: a task that is done does not come back."""
    with Engine(own_server.url, name=name, shards=SHARDS, timeout=TIMEOUT_S, replay=60) as engine:
        engine.start()
        engine.push_many([Task(n) for n in range(MANY)])
        consumer = engine.consumer()
        consumer.ack(claim(consumer, MANY))
        ids = engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)])
        looked(engine)
        own_server.kill()
        own_server.restart()
        wait_until(lambda: replays(engine) >= 1, "the server was looked through")
        stats = counted(engine)
        assert (stats.scheduled, stats.ready, stats.leased) == (len(ids), 0, 0)


@pytest.mark.parametrize("pushes", [True, False], ids=["opened again", "not opened again"])
@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHDB"])
def test_a_server_that_was_emptied(own_server: Server, name: str, command: str, pushes: bool) -> None:
    """It is the same process with the same replication history: only the shards' metas tell. A push after it opens the
    shards again, before the next look.
    """
    with Engine(own_server.url, name=name, shards=SHARDS, timeout=TIMEOUT_S, replay=10) as engine:
        ids = [*engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)]), engine.push(0, id="mine", delay=FAR_S)]
        engine.cancel(ids[0])
        looked(engine)
        own_server.ask(command)
        if pushes:
            ids += engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)])
        wait_until(lambda: replays(engine) >= 1, "the server was looked through")
        assert missing(engine, [*ids]) == [ids[0]]
        looked(engine)
        looked(engine)
        assert replays(engine) == 1, "what is open again is no other loss"


def test_a_master_that_was_emptied_before_its_replica_took_over(own_cluster: Cluster, name: str) -> None:
    """The replica has all of its master's history, and none of the tasks."""
    with Engine(own_cluster.url, name=name, shards=SHARDS, timeout=TIMEOUT_S, replay=60) as engine:
        master = own_cluster.node_of_slot(keys_of(name, SHARDS)[0].slot)
        (replica,) = own_cluster.replicas_of(master)
        ids = engine.push_many([Task(n, delay=FAR_S) for n in range(MANY)])
        looked(engine)
        master.ask("FLUSHALL")
        replicated(master, replica)
        master.kill()
        wait_until(lambda: _is_master(replica), "the replica is promoted", timeout=PROMOTED_S)
        wait_until(lambda: replays(engine) >= 1, "the new master was looked through", timeout=PROMOTED_S)
        assert missing(engine, [*ids]) == []


def looked(engine: Engine) -> None:
    """Returns when every master was looked at once more."""
    replayer = EngineAccess(engine).running.replayer
    assert replayer is not None
    now, asked = time.monotonic(), replayer._looked
    wait_until(lambda: asked and all(at > now for at in dict(asked).values()), "every master is looked at")
