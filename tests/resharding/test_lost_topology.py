"""The control slot loses the last topology, or all of it, in a failover, while tasks are in the shards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.keys import control_keys
from shardq.core.layout.topology import Stamp
from shardq.engine.access import EngineAccess
from tests.resharding.conftest import SHARDS
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until


class Control:
    """The stored topology, written by the test."""

    def __init__(self, servers: Servers, name: str) -> None:
        self._servers, self._keys = servers, control_keys(name)
        self._settings: dict[bytes, bytes] = {}

    def read(self) -> dict[bytes, bytes]:
        self._settings = self._servers.ask(self._keys.slot, "HGETALL", self._keys.settings)
        fields: dict[bytes, bytes] = self._servers.ask(self._keys.slot, "HGETALL", self._keys.topology)
        return fields

    def lose(self, before: dict[bytes, bytes] | None = None) -> None:
        """All of it, or what was written since."""
        self._servers.ask(self._keys.slot, "DEL", self._keys.topology, self._keys.settings, self._keys.edits)
        for key, fields in ((self._keys.topology, before), (self._keys.settings, self._settings)):
            if before and fields:
                self._servers.ask(self._keys.slot, "HSET", key, *(word for pair in fields.items() for word in pair))

    @property
    def epoch(self) -> int:
        return Stamp.of(self._servers.ask(self._keys.slot, "HGET", self._keys.topology, "epoch")).epoch

    @property
    def shards(self) -> int:
        return int(self.read().get(b"shards", 0))


@pytest.fixture
def control(servers: Servers, name: str) -> Control:
    return Control(servers, name)


@pytest.fixture
def ids(engine: Engine) -> list[str]:
    return [str(id) for id in engine.push_many([Task(n, delay=FAR_S, id=f"n{n}") for n in range(200)])]


@pytest.mark.slow
@pytest.mark.parametrize("everything", [False, True], ids=["the last change", "everything"])
def test_who_knows_it_restores_it(engine: Engine, control: Control, ids: list[str], everything: bool) -> None:
    before = control.read()
    engine.start()
    assert engine.resize(8).wait(30)
    control.lose(None if everything else before)
    wait_until(lambda: control.shards == 8, "a heartbeat restores it")
    assert [id for id in ids if not engine.cancel(id)] == []


@pytest.mark.parametrize("everything", [False, True], ids=["the last change", "everything"])
def test_nobody_knows_it_but_the_shards(
    engine: Engine, control: Control, ids: list[str], url: str, name: str, everything: bool
) -> None:
    before = control.read()
    engine.start()
    assert engine.resize(8).wait(30)
    engine.close()
    control.lose(None if everything else before)
    with Engine(url, name=name, shards=SHARDS, timeout=10.0) as other:
        assert [id for id in ids if not other.cancel(id)] == []
        other.push_many([Task(n, delay=0) for n in range(50)])
        assert other.topology.shards == control.shards == 8
        other.start()
        consumer = other.consumer()
        consumer.ack(claim(consumer, 50))
        assert other.stats().scheduled == 0


def test_the_announcement_is_lost(engine: Engine, control: Control, ids: list[str]) -> None:
    """Of a change in force, so that the shards are two epochs ahead."""
    before = control.read()
    engine.resize(8)
    control.lose(before)
    with Engine(EngineAccess(engine).options.url, name=engine.name, timeout=10.0) as other:
        assert [id for id in ids[::10] if not other.cancel(id)] == []
    assert control.shards == 8


@pytest.mark.slow
@pytest.mark.parametrize("everything", [False, True], ids=["the last change", "everything"])
@pytest.mark.parametrize("who", ["a dispatcher", "a consumer"])
def test_whoever_comes_by_repairs_it(
    engine: Engine, control: Control, ids: list[str], url: str, name: str, everything: bool, who: str
) -> None:
    """Without a push, or another operation that would do it."""
    before = control.read()
    engine.start()
    assert engine.resize(8).wait(30)
    engine.close()
    control.lose(None if everything else before)
    with Engine(url, name=name, shards=SHARDS, timeout=10.0) as other:
        if who == "a dispatcher":
            other.start()
            wait_until(lambda: control.shards == 8, "it is restored")
            wait_until(lambda: other.health().ok, "every poller is well")
        else:
            consumer = other.consumer()
            wait_until(lambda: not consumer.claim(1, wait=0.5) and control.shards == 8, "it is restored")
        assert [id for id in ids if not other.cancel(id)] == []


@pytest.mark.parametrize("who", ["a dispatcher", "a consumer", "a producer"])
def test_a_topology_that_nobody_has_a_copy_of(
    engine: Engine, control: Control, servers: Servers, ids: list[str], url: str, name: str, who: str
) -> None:
    """The last edit is lost, and no more than that."""
    before = control.read()
    engine.pause("mail")
    epoch = engine.topology.epoch
    engine.close()
    control.lose(before)
    for keys in keys_of(name, SHARDS):
        servers.ask(keys.slot, "HDEL", keys.meta, "topology")
    with Engine(url, name=name, shards=SHARDS, timeout=10.0) as other:
        if who == "a dispatcher":
            other.start()
        elif who == "a producer":
            other.push("x", delay=FAR_S)
        consumer = other.consumer()

        def restored() -> bool:
            if who == "a consumer":
                consumer.claim(1)
            return control.epoch > epoch

        wait_until(restored, "there is a topology that is newer than the lost one")
        assert other.topology.paused == frozenset()
        assert [id for id in ids if not other.cancel(id)] == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("everything", [False, True], ids=["the last change", "everything"])
def test_a_change_restores_what_it_follows(engine: Engine, control: Control, everything: bool) -> None:
    """No heartbeat has restored it before, and only who changes it knows it."""
    before = control.read()
    engine.pause("mail")
    control.lose(None if everything else before)
    engine.pause("news")
    assert engine.topology.paused == {"mail", "news"}
    control.lose(None if everything else before)
    engine.resize(8)
    assert control.shards == 8
    assert engine.topology.paused == {"mail", "news"}


def change_and_lose(engine: Engine, control: Control, *, announced: bool) -> None:
    """Several changes are lost, and no process that knows them lives. ``announced``: back to a resize that began."""
    before = control.read()
    if announced:
        before |= engine.topology.following(pending=8).to_fields()
        control.lose(before)
        engine.resize(8)
    for per_s in (1, 2, 3):
        engine.limit("news", rate=per_s)
    engine.close()
    control.lose(before)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("announced", [False, True], ids=["in force", "announced"])
def test_a_change_of_what_was_taken_back_stays(
    engine: Engine, control: Control, ids: list[str], url: str, name: str, announced: bool
) -> None:
    """Only shards know what was lost: it comes back when they are asked, and must not end what was changed since."""
    engine.pause("mail")
    change_and_lose(engine, control, announced=announced)
    with Engine(url, name=name, timeout=10.0) as other:
        other.resume("mail")
        assert [id for id in ids if not other.cancel(id)] == []
        assert other.topology.paused == frozenset()
        assert other.topology.limits["news"].rate == 3
        assert control.shards == (8 if announced else SHARDS)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("announced", [False, True], ids=["in force", "announced"])
def test_a_resize_of_what_was_taken_back_stays(
    engine: Engine, control: Control, ids: list[str], url: str, name: str, announced: bool
) -> None:
    change_and_lose(engine, control, announced=announced)
    with Engine(url, name=name, timeout=10.0) as other:
        other.resize(8)
        assert [id for id in ids if not other.cancel(id)] == []
        assert other.topology.shards == control.shards == 8
        assert other.topology.limits["news"].rate == 3


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("who", ["a dispatcher", "a consumer"])
def test_nobody_spins_until_it_is_repaired(
    engine: Engine, control: Control, servers: Servers, url: str, name: str, who: str
) -> None:
    """Whoever published the topology may be about to tell it: that is waited for, longer from one look to the next."""
    keys = keys_of(name, SHARDS)[0]
    lost = 1_000_000
    with Engine(url, name=name, timeout=10.0) as other:
        servers.ask(keys.slot, "HSET", keys.meta, "epoch", engine.topology.following(epoch=lost).stamp)
        before = calls(servers)
        if who == "a dispatcher":
            other.start()
            wait_until(lambda: control.epoch > lost, "it is repaired")
        else:
            consumer = other.consumer()
            wait_until(lambda: not consumer.claim(1, wait=0.2) and control.epoch > lost, "it is repaired")
        assert calls(servers) - before < 100


def calls(servers: Servers) -> int:
    """How often the topology was read until now."""
    (stats,) = servers.ask_all("INFO", "commandstats")
    return int(stats.get("cmdstat_hgetall", {"calls": 0})["calls"])


@pytest.fixture
def own_engine(own_server: Server, name: str) -> Iterator[Engine]:
    with Engine(own_server.url, name=name, shards=SHARDS, timeout=10.0) as engine:
        yield engine


def test_a_server_that_lost_everything(own_engine: Engine, own_server: Server) -> None:
    own_engine.start()
    assert own_engine.resize(8).wait(30)
    own_engine.push_many([Task(n, delay=FAR_S) for n in range(50)])
    own_server.ask("FLUSHALL")
    own_engine.push_many([Task(n, delay=0) for n in range(50)])
    consumer = own_engine.consumer()
    consumer.ack(claim(consumer, 50))
    wait_until(
        lambda: own_server.ask("HGET", control_keys(own_engine.name).topology, "shards") == "8", "it is declared"
    )
    assert own_engine.resize(12).wait(30)
    stats = own_engine.stats()
    assert (stats.scheduled, len(stats.shards)) == (0, 12)
    wait_until(lambda: own_engine.health().ok, "every poller is well")
