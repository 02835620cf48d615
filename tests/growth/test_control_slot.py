"""A control slot that forgets: the last topology is lost by a failover, or all of it, while tasks are in the shards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.layout.keys import control_keys
from tests.growth.conftest import SHARDS
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until


class Control:
    """The stored topology, in the hands of the test."""

    def __init__(self, servers: Servers, name: str) -> None:
        self._servers, self._keys = servers, control_keys(name)

    def read(self) -> dict[bytes, bytes]:
        fields: dict[bytes, bytes] = self._servers.ask(self._keys.slot, "HGETALL", self._keys.topology)
        return fields

    def lose(self, before: dict[bytes, bytes] | None = None) -> None:
        """All of it, or what was written since."""
        self._servers.ask(self._keys.slot, "DEL", self._keys.topology)
        if before:
            words = [word for pair in before.items() for word in pair]
            self._servers.ask(self._keys.slot, "HSET", self._keys.topology, *words)

    @property
    def shards(self) -> int:
        return int(self.read().get(b"shards", 0))


@pytest.fixture
def control(servers: Servers, name: str) -> Control:
    return Control(servers, name)


@pytest.fixture
def ids(engine: Engine) -> list[str]:
    return [str(id) for id in engine.push_many([Task(n, delay=FAR_S, id=f"n{n}") for n in range(200)])]


@pytest.mark.parametrize("everything", [False, True], ids=["the last change", "everything"])
def test_who_knows_it_restores_it(engine: Engine, control: Control, ids: list[str], everything: bool) -> None:
    before = control.read()
    engine.start()
    assert engine.expand(8).wait(30)
    now = control.read()
    control.lose(None if everything else before)
    wait_until(lambda: control.read() == now, "a heartbeat restores it")
    assert [id for id in ids if not engine.cancel(id)] == []


@pytest.mark.parametrize("everything", [False, True], ids=["the last change", "everything"])
def test_nobody_knows_it_but_the_shards(
    engine: Engine, control: Control, ids: list[str], url: str, name: str, everything: bool
) -> None:
    before = control.read()
    engine.start()
    assert engine.expand(8).wait(30)
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
    engine.expand(8)
    control.lose(before)
    with Engine(engine.options.url, name=engine.name, timeout=10.0) as other:
        assert [id for id in ids[::10] if not other.cancel(id)] == []
    assert control.shards == 8


@pytest.fixture
def own_engine(own_server: Server, name: str) -> Iterator[Engine]:
    with Engine(own_server.url, name=name, shards=SHARDS, timeout=10.0) as engine:
        yield engine


def test_a_server_that_lost_everything(own_engine: Engine, own_server: Server) -> None:
    own_engine.start()
    assert own_engine.expand(8).wait(30)
    own_engine.push_many([Task(n, delay=FAR_S) for n in range(50)])
    own_server.ask("FLUSHALL")
    own_engine.push_many([Task(n, delay=0) for n in range(50)])
    consumer = own_engine.consumer()
    consumer.ack(claim(consumer, 50))
    wait_until(
        lambda: own_server.ask("HGET", control_keys(own_engine.name).topology, "shards") == "8", "it is declared"
    )
    assert own_engine.expand(12).wait(30)
    stats = own_engine.stats()
    assert (stats.scheduled, len(stats.shards)) == (0, 12)
    wait_until(lambda: own_engine.stats().healthy, "every poller is well")
