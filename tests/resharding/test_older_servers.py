"""Servers that come back older than the processes that use them, engines that are begun anew, and addresses that lead
elsewhere: every task that was on the disk is handled, every command tells the truth, and no other engine is touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine, Outcome, Task
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.operation import run
from shardq.core.topology_upkeep import open_shards
from shardq.engine.access import EngineAccess
from shardq.engine.wiring import connected
from shardq.errors import AnotherEngine, ShardqError
from tests.cli.shell import Shell
from tests.support.engines import Engines
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

TASKS = 300


@pytest.fixture
def server(server_binary: Path) -> Iterator[Server]:
    """A server that keeps what it is told to save, and nothing since."""
    with Server(server_binary) as server:
        yield server


class Snapshot:
    """What these servers hold now, to go back to."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        for server in servers:
            server.ask("SAVE")
            shutil.copy(server.folder / "dump.rdb", server.folder / "before.rdb")

    def restored(self) -> None:
        """Each is killed, and comes back as it was."""
        for server in self._servers:
            server.kill()
            shutil.copy(server.folder / "before.rdb", server.folder / "dump.rdb")
        for server in self._servers:
            server.start()


def started(stack: ExitStack, url: str, name: str, shards: int) -> Engine:
    engine = stack.enter_context(Engine(url, name=name, shards=shards, timeout=20.0))
    engine.start()
    return engine


def handled(engine: Engine, count: int) -> list[str]:
    """The ids that are given out until that many were, each acked."""
    ids: list[str] = []
    consumer = engine.consumer()

    def all_handled() -> bool:
        deliveries = consumer.claim(100, wait=0.5)
        consumer.ack(deliveries)
        ids.extend(delivery.id for delivery in deliveries)
        return len(ids) >= count

    wait_until(all_handled, f"{count} tasks are handled", timeout=60)
    return sorted(ids)


def told_right(engine: Engine, ids: Sequence[str]) -> None:
    """Each id is found, cancelled once, and pushed once; the others are handled, each once."""
    cancelled, pushed, rest = ids[::3], ids[1::3], ids[2::3]
    assert [id for id in cancelled if engine.cancel(id) is not Outcome.CANCELLED] == []
    assert [id for id in cancelled if engine.cancel(id) is not Outcome.GONE] == []
    assert [id for id in pushed if engine.push("again", id=id, delay=FAR_S).outcome is not Outcome.KEPT] == []
    for id in [*pushed, *rest]:
        assert engine.reschedule(id, delay=0), id
    assert handled(engine, len(pushed) + len(rest)) == sorted([*pushed, *rest])


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["alive", "anew"])
@pytest.mark.parametrize(("before", "after"), [(16, 2), (16, 4), (4, 16)])
def test_a_server_that_goes_back_behind_a_resize(
    server: Server, name: str, before: int, after: int, processes: str
) -> None:
    with ExitStack() as stack:
        engine = started(stack, server.url, name, before)
        ids = [str(id) for id in engine.push_many([Task(n, delay=FAR_S, id=f"n{n}") for n in range(TASKS)])]
        snapshot = Snapshot([server])
        assert engine.resize(after).wait(60)
        if processes == "anew":
            engine.close()
        snapshot.restored()
        if processes == "anew":
            engine = started(stack, server.url, name, before)
        told_right(engine, ids)
        wait_until(lambda: engine.health().ok, "all is well")


@pytest.mark.slow
def test_a_server_that_goes_back_into_a_resize(server: Server, name: str) -> None:
    """Some tasks are moved already, and some not."""
    with ExitStack() as stack:
        engine = started(stack, server.url, name, 4)
        ids = [str(id) for id in engine.push_many([Task(n, delay=FAR_S, id=f"n{n}") for n in range(TASKS)])]
        engine.resize(16, rate=100)
        wait_until(lambda: engine.resize(dry_run=True).progress().moved > TASKS / 4, "some are moved")
        snapshot = Snapshot([server])
        engine.resize(16)
        assert engine.resize(16).wait(60)
        snapshot.restored()
        told_right(engine, ids)


@pytest.mark.slow
def test_one_node_of_a_cluster_goes_back(server_binary: Path, name: str) -> None:
    """The others, and the processes, do not: what the node knew then is looked at."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(server_binary, masters=3))
        engine = started(stack, cluster.url, name, 16)
        ids = [str(id) for id in engine.push_many([Task(n, delay=FAR_S, id=f"n{n}") for n in range(TASKS)])]
        slot = control_keys(name).slot
        node = next(node for node in cluster.masters if node is not cluster.node_of_slot(slot))
        snapshot = Snapshot([node])
        held = {
            id.decode()
            for shard in range(16)
            if cluster.node_of_slot((keys := shard_keys(name, shard)).slot) is node
            for id in node.ask("HKEYS", keys.task, decode=False)
        }
        assert engine.resize(2).wait(60)
        snapshot.restored()
        wait_until(lambda: engine.topology.priors or engine.push("x", id="new", delay=FAR_S), "somebody meets it")
        there = [id for id in ids if engine.get(id) is not None]
        assert held <= set(there)


@pytest.mark.slow
def test_nodes_of_different_minutes(server_binary: Path, name: str) -> None:
    """All processes were stopped, and shards out of use have tasks again: who starts anew brings them home."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(server_binary, masters=3))
        node = cluster.node_of_slot(shard_keys(name, 2).slot)
        names = (f"{name}{n}" for n in range(100))
        name = next(each for each in names if cluster.node_of_slot(control_keys(each).slot) is not node)
        retired = [
            keys for shard in range(2, 16) if cluster.node_of_slot((keys := shard_keys(name, shard)).slot) is node
        ]
        engine = started(stack, cluster.url, name, 16)
        engine.push_many([Task(n, delay=FAR_S, id=f"n{n}") for n in range(TASKS)])
        snapshot = Snapshot([node])
        held = {id.decode() for keys in retired for id in node.ask("HKEYS", keys.task, decode=False)}
        assert engine.resize(2).wait(60)
        engine.close()
        snapshot.restored()
        cluster.wait_ok()
        engine = started(stack, cluster.url, name, 2)
        wait_until(lambda: engine.get(min(held)) is not None, "tasks are looked for there, too")
        assert [id for id in held if engine.get(id) is None] == []
        wait_until(lambda: not any(node.ask("EXISTS", keys.task) for keys in retired), "all have come home", timeout=60)
        assert [id for id in held if engine.get(id) is None] == []


@pytest.mark.slow
@pytest.mark.parametrize("older", ["the node of the topology", "another node"])
def test_doctor_ends_it(server_binary: Path, name: str, tmp_path: Path, older: str) -> None:
    """A cluster of different minutes, and nobody who dispatches: one run finds all that is stored."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(server_binary, masters=3))
        node = cluster.node_of_slot(control_keys(name).slot)
        if older == "another node":
            node = next(each for each in cluster.masters if each is not node)
        engine = started(stack, cluster.url, name, 16)
        engine.push_many([Task(n, delay=FAR_S, id=f"n{n}") for n in range(TASKS)])
        snapshot = Snapshot([node])
        assert engine.resize(2).wait(60)
        engine.push_many([Task(n, delay=FAR_S, id=f"m{n}") for n in range(TASKS)])
        engine.close()
        snapshot.restored()
        cluster.wait_ok()
        shards = [shard_keys(name, shard) for shard in range(16)]
        held = {
            id.decode()
            for keys in shards
            for id in cluster.node_of_slot(keys.slot).ask("HKEYS", keys.task, decode=False)
        }
        assert len(held) > TASKS
        shell = Shell(tmp_path, {"SHARDQ_URL": cluster.url, "SHARDQ_NAME": name})
        stack.callback(shell.end)
        told = shell.run("doctor", "--json", "--all", "--fix")
        wrong = [each for each in told.objects if each["check"] == "epochs" and each.get("ok") is False]
        found = [each for check in wrong for each in check["findings"]]
        assert [each["text"] for each in found if not each["fix"]] == []
        checks = {each["check"] for each in shell.run("doctor", "--json", "--all").objects if each["ok"] is False}
        assert checks.isdisjoint({"epochs", "places", "records"})
        engine = stack.enter_context(Engine(cluster.url, name=name, timeout=20.0))
        assert [id for id in held if engine.get(id) is None] == []
        engine.start()
        wait_until(lambda: not engine.topology.priors and engine.health().ok, "all have come home", timeout=60)
        assert [id for id in held if engine.get(id) is None] == []
        assert engine.stats().scheduled == len(held)


def test_a_pause_that_was_taken_back_and_a_limit_of_the_same_epoch(server: Server, name: str) -> None:
    """Both are in force at last, and all processes agree."""
    with ExitStack() as stack:
        one = stack.enter_context(Engine(server.url, name=name, shards=2, timeout=20.0))
        two = stack.enter_context(Engine(server.url, name=name, timeout=20.0))
        two.push("x", delay=FAR_S)
        snapshot = Snapshot([server])
        one.pause("mail")
        snapshot.restored()
        two.limit("news", rate=5)
        one.start()

        def agreed() -> bool:
            two.push("x", delay=FAR_S)
            seen = {(each.topology.stamp, each.topology.paused, tuple(each.topology.limits)) for each in (one, two)}
            return len(seen) == 1 and next(iter(seen))[1:] == (frozenset({"mail"}), ("news",))

        wait_until(agreed, "both know both")


def test_an_engine_that_is_lost_and_begun_anew_with_fewer_shards(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        producer = stack.enter_context(Engine(server.url, name=name, shards=16, timeout=20.0))
        producer.push("x", delay=FAR_S)
        server.ask("FLUSHALL")
        engine = started(stack, server.url, name, 4)
        assert engine.topology.shards == 4
        ids = sorted(str(producer.push(n)) for n in range(TASKS))
        assert producer.topology.engine == engine.topology.engine
        assert handled(engine, TASKS) == ids
        assert [record.message for record in caplog.records if "begun anew" in record.message] != []


def test_who_is_alive_restores_what_a_new_process_begins_later(server: Server, name: str) -> None:
    """The dispatcher's heartbeat comes first: the engine goes on, with nothing in it."""
    with ExitStack() as stack:
        engine = started(stack, server.url, name, 4)
        known = engine.topology.engine
        server.ask("FLUSHALL")
        wait_until(lambda: server.ask("EXISTS", control_keys(name).topology), "it is restored")
        other = stack.enter_context(Engine(server.url, name=name, shards=16))
        assert other.topology.engine == known
        assert other.topology.shards == 4


@pytest.mark.slow
@pytest.mark.parametrize("who", ["a dispatcher", "a producer"])
def test_an_address_that_leads_to_another_engine(server_binary: Path, name: str, who: str) -> None:
    """Of the same name, which was there before. It is left alone, and all is as it was when the address leads home."""
    with ExitStack() as stack:
        home, other = (stack.enter_context(Server(server_binary)) for _ in range(2))
        innocent = stack.enter_context(Engine(other.url, name=name, shards=4, timeout=10.0))
        innocent.pause("mail")
        ids = {str(id) for id in innocent.push_many([Task(n, delay=FAR_S) for n in range(TASKS)])}
        other.ask("HINCRBY", control_keys(name).topology, "created", -60_000)  # not just now
        known = other.ask("HGETALL", control_keys(name).topology)
        engine = stack.enter_context(Engine(home.url, name=name, shards=16, timeout=3.0))
        for n in range(20):
            engine.resize(16) if n else engine.pause("news")
            engine.push("x", id="mine", delay=FAR_S)
        engine.resume("news")
        if who == "a dispatcher":
            engine.start()
        swapped(home, other)
        with pytest.raises(AnotherEngine) as caught:
            engine.push("y", delay=FAR_S)
        assert innocent.topology.engine in str(caught.value)
        with pytest.raises(AnotherEngine):
            engine.pause("elsewhere")
        with pytest.raises(AnotherEngine):
            engine.cancel("mine")
        assert not engine.health().ok
        assert "another engine" in " ".join(engine.health().reasons)
        assert home.ask("HGETALL", control_keys(name).topology) == known
        stored = {id for shard in range(16) for id in home.ask("HKEYS", shard_keys(name, shard).task)}
        assert stored == ids
        assert home.ask("ZCARD", control_keys(name).members) == 0
        swapped(home, other)
        wait_until(lambda: engine.get("mine") is not None, "it is home again")


@pytest.mark.slow
def test_what_a_worker_and_schedules_write_is_not_written_into_another_engine(server_binary: Path, name: str) -> None:
    """A worker reports; schedules are declared, paused and listed."""
    with ExitStack() as stack:
        home, other = (stack.enter_context(Server(server_binary)) for _ in range(2))
        stack.enter_context(Engine(other.url, name=name, shards=4)).every("mine", interval=60.0)
        keys = control_keys(name)
        other.ask("HINCRBY", keys.topology, "created", -60_000)  # not just now
        engine = stack.enter_context(Engine(home.url, name=name, shards=4, timeout=3.0))
        worker = engine.worker()
        worker.on("mail")(lambda job: None)
        engine.every("nightly", interval=60.0)
        with Engines("sync").working(worker):
            wait_until(lambda: home.ask("ZCARD", keys.workers), "it has reported")
            known = other.ask("HGETALL", keys.schedules)
            swapped(home, other)
            for change in (
                lambda: engine.every("nightly", interval=30.0),
                lambda: engine.schedule("mine").pause(),
                engine.schedules,
            ):
                with pytest.raises(AnotherEngine):
                    change()
            assert not engine.health().ok
        assert home.ask("HGETALL", keys.schedules) == known
        assert home.ask("EXISTS", keys.workers, keys.reports) == 0
        swapped(home, other)
        wait_until(lambda: [each.name for each in engine.schedules()] == ["nightly"], "it is home again")


def test_an_address_that_leads_to_another_engine_while_shards_are_opened(server_binary: Path, name: str) -> None:
    """They are closed again: what a process stored there would be lost for it, and nobody's."""
    with ExitStack() as stack:
        home, other = (stack.enter_context(Server(server_binary)) for _ in range(2))
        innocent = stack.enter_context(Engine(other.url, name=name, shards=4, timeout=10.0))
        other.ask("HINCRBY", control_keys(name).topology, "created", -60_000)  # not just now
        engine = stack.enter_context(Engine(home.url, name=name, shards=16, timeout=10.0))

        def there() -> list[object]:
            return [sorted(other.ask("KEYS", "*")), *(other.ask("HGETALL", shard_keys(name, n).meta) for n in range(4))]

        before = there()
        cache = EngineAccess(engine).cache
        with connected(EngineAccess(innocent).options) as driver, pytest.raises(AnotherEngine):
            run(driver, open_shards(cache, cache.span()), 10.0)
        assert there() == before


def swapped(one: Server, other: Server) -> None:
    """Each address has the other's data from now on."""
    for server in (one, other):
        server.ask("SAVE")
        server.kill()
    held = [(server.folder / "dump.rdb").read_bytes() for server in (one, other)]
    for server, data in zip((other, one), held, strict=True):
        (server.folder / "dump.rdb").write_bytes(data)
        server.start()


def test_another_engine_is_a_shardq_error_that_says_what_to_do() -> None:
    error = AnotherEngine("orders", known="a1", found="b2")
    assert isinstance(error, ShardqError)
    assert "a1" in str(error)
    assert "b2" in str(error)
    assert "start this program anew" in str(error)
