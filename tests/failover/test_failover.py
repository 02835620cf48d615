"""A master killed while an engine dispatches from it, and its replica promoted: its shards are served again at once,
and what was to be replicated is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from cluster.server import Server
from shardq import Engine, NotReplicated, Task
from shardq.layout.keys import ShardKeys
from tests.failover.conftest import Service
from tests.support.servers import keys_of
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until

SHARDS = 6

STEADY = 1600
EVERY_S = 0.005
"""That many tasks fall due, so far from one another: something is due at every instant until some 8 s from now."""

RESUMED_S = 5.0
"""After the promotion, on a machine that may be busy. It takes 0.1 to 0.3 s on a cluster, and 1 s under Sentinel, which
names the new master when it looks the next time; where a master hangs, up to the 2 s of a poller's call more."""

PROMOTED_S = 30.0


@pytest.fixture
def engine(service: Service, name: str) -> Iterator[Engine]:
    with Engine(service.url, name=name, shards=SHARDS, timeout=30.0) as engine:
        engine.start()
        yield engine


class Lost:
    """The master of shard 0, killed or hung; and its replica, promoted."""

    def __init__(self, service: Service, name: str) -> None:
        first = keys_of(name, SHARDS)[0]
        self.master, self.replica = service.pair(first.slot)
        self.shards = [keys for keys in keys_of(name, SHARDS) if service.pair(keys.slot)[0] is self.master]

    def in_step(self) -> bool:
        """The replica has all that the master has."""
        _, offset, replicas = self.master.ask("ROLE")
        return [int(told) for _, _, told in replicas] == [int(offset)]

    def kill(self) -> float:
        """The instant at which the replica says that it is the master."""
        self.master.kill()
        return self._replaced()

    def hang(self) -> float:
        """The same of a master that keeps its connections and says nothing."""
        self.master.pause()
        return self._replaced()

    def _replaced(self) -> float:
        wait_until(self._promoted, "the replica is promoted", timeout=PROMOTED_S)
        return time.monotonic()

    def _promoted(self) -> bool:
        try:
            return bool(self.replica.ask("ROLE")[0] == "master")
        except redis.ConnectionError:
            # a sentinel ends its connections with the promotion
            return False


def dispatched(server: Server, keys: ShardKeys) -> int:
    """So many tasks of a shard, by the word of its server."""
    return int(server.ask("HGET", keys.topics, "") or 0)


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_dispatching_goes_on(engine: Engine, service: Service, name: str, how: str) -> None:
    pushed = engine.push_many([Task(n, delay=1 + n * EVERY_S) for n in range(STEADY)])
    lost = Lost(service, name)
    wait_until(lambda: all(dispatched(lost.master, keys) for keys in lost.shards), "every shard is dispatched")
    wait_until(lost.in_step, "the replica has everything")
    promoted_at = lost.kill() if how == "killed" else lost.hang()
    waiting = {keys.shard: (keys, dispatched(lost.replica, keys)) for keys in lost.shards}
    assert waiting
    while waiting:
        for shard, (keys, before) in list(waiting.items()):
            if dispatched(lost.replica, keys) > before:
                del waiting[shard]
        assert time.monotonic() < promoted_at + RESUMED_S, f"shards {list(waiting)} are not served"
    wait_until(lambda: engine.stats().ready == STEADY, "all is dispatched", timeout=20)
    deliveries = claim(engine.consumer(), STEADY)
    assert sorted(delivery.id for delivery in deliveries) == sorted(pushed)
    engine.consumer().ack(deliveries)
    wait_until(lambda: engine.stats().healthy, "every poller is well")


def test_what_was_to_be_replicated_is_there(engine: Engine, service: Service, name: str) -> None:
    confirmed: list[str] = []
    end = threading.Event()

    def push() -> None:
        while not end.is_set():
            try:
                confirmed.extend(
                    engine.push_many([Task(0, delay=FAR_S) for _ in range(SHARDS * 2)], durability="replicated")
                )
                confirmed.append(engine.push(0, delay=FAR_S, durability="replicated"))
            except NotReplicated:
                # the new master has no replica: nothing more will be confirmed there
                end.set()

    lost = Lost(service, name)
    with ThreadPoolExecutor(3) as threads:
        pushing = [threads.submit(push) for _ in range(3)]
        try:
            wait_until(lambda: len(confirmed) > 2000, "pushes are confirmed")
            before = len(confirmed)
            lost.kill()
            wait_until(end.is_set, "pushes reach the new master", timeout=20)
        finally:
            end.set()
        for thread in pushing:
            thread.result()
    assert before > 2000
    assert [id for id in confirmed if engine.get(id) is None] == []
