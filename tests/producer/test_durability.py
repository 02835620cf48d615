"""A durable push returns only when its task is confirmed, also when the push itself wrote nothing."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import AsyncEngine, Engine, Task
from shardq.core.producer import shared_barriers
from shardq.core.producer.durable import Durability
from shardq.errors import Conflict, DurabilityUnavailable, NotReplicated, PushError
from tests.support.engines import SHARDS, Engines
from tests.support.states import FAR_S
from tests.support.waiting import wait_until


@pytest.mark.parametrize("outcome", ["pushed", "kept", "replaced"])
def test_no_push_is_confirmed_that_no_replica_has(
    engines: Engines, own_server: Server, replica: Server, name: str, outcome: str
) -> None:
    engine = engines.opened(own_server.url, name=name, shards=SHARDS)
    if outcome != "pushed":
        engine.push("x", id="a", delay=FAR_S)
    replica.pause()
    for _ in range(2):
        # again, as the error says: it is kept, and still nowhere else
        with pytest.raises(NotReplicated) as caught:
            engine.push(
                "x",
                id="a",
                delay=FAR_S,
                durability="replicated",
                on_conflict="replace" if outcome == "replaced" else "keep",
            )
        assert (caught.value.ids, caught.value.reached) == (["a"], 0)
    replica.resume()
    wait_until(lambda: confirmed(engine), "it is confirmed when the replica is back")
    assert engine.push_many([Task(n, delay=FAR_S) for n in range(99)], durability="replicated")


def test_all_replicas_have_to_have_it(engines: Engines, own_server: Server, replica: Server, name: str) -> None:
    with Server(own_server.binary, options={"replicaof": own_server.address.replace(":", " ")}) as other:
        wait_until(lambda: own_server.ask("INFO", "replication")["connected_slaves"] == 2, "both are there", timeout=30)
        wait_until(lambda: other.ask("INFO", "replication")["master_link_status"] == "up", "it is in step", timeout=30)
        engine = engines.opened(own_server.url, name=name, shards=SHARDS)
        assert engine.push("x", id="a", delay=FAR_S, durability="replicated")
        other.pause()
        with pytest.raises(NotReplicated) as caught:
            engine.push("x", id="b", delay=FAR_S, durability="replicated")
        assert (caught.value.ids, caught.value.reached) == (["b"], 1)
        other.resume()


def confirmed(engine: Engine) -> bool:
    try:
        return engine.push("x", id="a", delay=FAR_S, durability="replicated").outcome == "kept"
    except NotReplicated:
        return False


def stored(engine: Engine) -> int:
    stats = engine.stats()
    return stats.scheduled + stats.ready


@pytest.mark.parametrize("many", [False, True], ids=["push", "push_many"])
@pytest.mark.parametrize("durability", ["replicated", "fsynced"])
def test_where_nothing_could_confirm_it_nothing_is_stored(
    engines: Engines, server_binary: Path, name: str, durability: Durability, many: bool
) -> None:
    with Server(server_binary, options={"appendonly": "no"}) as server:
        engine = engines.opened(server.url, name=name, shards=SHARDS)
        why = "no replica"
        if durability == "fsynced":
            why = "no append-only file" if has_waitaof(server) else "does not know WAITAOF"
        tasks = [Task(n) for n in range(9)]
        with pytest.raises(DurabilityUnavailable, match=f"{why}.*nothing was stored"):
            _ = engine.push_many(tasks, durability=durability) if many else engine.push("x", durability=durability)
        assert stored(engine) == 0


def has_waitaof(server: Server) -> bool:
    major, minor, *_ = server.ask("INFO", "server")["redis_version"].split(".")
    return (int(major), int(minor)) >= (7, 2)


def test_fsynced(engines: Engines, own_server: Server, name: str) -> None:
    own_server.ask("CONFIG", "SET", "appendfsync", "always")
    engine = engines.opened(own_server.url, name=name, shards=SHARDS)
    if not has_waitaof(own_server):
        with pytest.raises(DurabilityUnavailable, match="WAITAOF"):
            engine.push("x", id="a", durability="fsynced")
        return
    assert engine.push("x", id="a", delay=FAR_S, durability="fsynced").outcome == "pushed"
    assert engine.push("x", id="a", delay=FAR_S, durability="fsynced").outcome == "kept"
    own_server.ask("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(DurabilityUnavailable, match="no append-only file"):
        engine.push("x", id="a", delay=FAR_S, durability="fsynced")


def test_the_connections_are_bounded(engines: Engines, own_server: Server, replica: Server, name: str) -> None:
    """Those to one node are shared, over all threads and shards."""
    engine = engines.opened(own_server.url, name=name, shards=16)
    before = int(own_server.ask("INFO", "clients")["connected_clients"])
    with ThreadPoolExecutor(48) as threads:
        pushes = [
            threads.submit(engine.push_many, [Task(n, delay=FAR_S) for n in range(64)], durability="replicated")
            for _ in range(96)
        ]
        assert sum(len(push.result()) for push in pushes) == 96 * 64
    # those that were open at once are kept for the next
    assert int(own_server.ask("INFO", "clients")["connected_clients"]) - before <= 64
    assert stored(engine) == 96 * 64


@pytest.mark.usefixtures("replica")
def test_the_program_may_use_every_thread_of_its_loop(own_server: Server, name: str) -> None:
    async def main() -> None:
        loop, released = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        in_use = loop.run_in_executor(None, released.wait)
        try:
            async with AsyncEngine(own_server.url, name=name, shards=SHARDS) as engine, asyncio.timeout(20):
                receipt = await engine.push("x", delay=FAR_S, durability="replicated")
                assert receipt.outcome == "pushed"
        finally:
            released.set()
            await in_use

    asyncio.run(main())


def waits(server: Server) -> int:
    stats = server.ask("INFO", "commandstats")
    return int(stats["cmdstat_wait"]["calls"])


def test_coroutines_that_wait_at_the_same_time_share_barriers(own_server: Server, replica: Server, name: str) -> None:
    async def run() -> None:
        async with AsyncEngine(own_server.url, name=name, shards=SHARDS, timeout=20.0) as engine:
            await engine.push(0, id="taken", delay=FAR_S, durability="replicated")
            before = waits(own_server)
            pushes = [engine.push(n, id=f"n-{n}", delay=FAR_S, durability="replicated") for n in range(100)]
            pushes += [engine.push(n, delay=FAR_S, durability="replicated") for n in range(100)]
            kept = [engine.push(n, id="taken", delay=FAR_S, durability="replicated") for n in range(3)]
            refused = engine.push(1, id="taken", delay=FAR_S, on_conflict="reject", durability="replicated")
            receipts = await asyncio.gather(*pushes, *kept, refused, return_exceptions=True)
            assert [str(each) for each in receipts[:100]] == [f"n-{n}" for n in range(100)]
            assert [getattr(each, "outcome", each) for each in receipts[:-1]] == ["pushed"] * 200 + ["kept"] * 3
            assert isinstance(receipts[-1], PushError)
            assert isinstance(receipts[-1].failed["taken"], Conflict)
            assert receipts[-1].ids == ["taken"]
            assert waits(own_server) - before < 50
            assert (await engine.stats()).scheduled == 201

    asyncio.run(run())


def test_each_that_shares_a_barrier_learns_that_its_own_task_is_not_confirmed(
    own_server: Server, replica: Server, name: str
) -> None:
    async def run() -> None:
        async with AsyncEngine(own_server.url, name=name, shards=SHARDS) as engine:
            await engine.push(0, id="first", delay=FAR_S, durability="replicated")
            replica.pause()
            pushes = [engine.push(n, id=f"n-{n}", delay=FAR_S, durability="replicated") for n in range(40)]
            told = await asyncio.gather(*pushes, return_exceptions=True)
            assert [type(each) for each in told] == [NotReplicated] * 40
            assert [each.ids for each in told if isinstance(each, NotReplicated)] == [[f"n-{n}"] for n in range(40)]
            replica.resume()
            assert (await engine.stats()).scheduled == 41

    asyncio.run(run())


def test_a_push_that_is_cancelled_before_its_turn_is_not_stored(
    own_server: Server, replica: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_barriers, "AT_ONCE", 1)

    async def run() -> None:
        async with AsyncEngine(own_server.url, name=name, shards=SHARDS) as engine:
            await engine.push(0, id="first", delay=FAR_S, durability="replicated")
            replica.pause()
            under_way = asyncio.create_task(engine.push(1, delay=FAR_S, durability="replicated"))
            await asyncio.sleep(0.1)  # it is sent
            waiting = asyncio.create_task(engine.push(2, delay=FAR_S, durability="replicated"))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(NotReplicated):
                await under_way
            replica.resume()
            await engine.push(3, delay=FAR_S, durability="replicated")
            assert (await engine.stats()).scheduled == 3

    asyncio.run(run())
