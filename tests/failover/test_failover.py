"""A master killed while an engine dispatches from it, and its replica promoted: its shards are served again at once,
and what was to be replicated is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.keys import ShardKeys
from shardq.errors import DurabilityUnavailable, NotReplicated
from tests.failover.conftest import Service
from tests.support.servers import keys_of
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until

SHARDS = 6

STEADY = 1600
EVERY_S = 0.005
"""That many tasks fall due, so far from one another: something is due at every instant until some 8 s from now."""

RESUMED_S = 12.0
"""After the promotion, on a machine that may be busy. It takes 0.1 to 0.3 s on a cluster, and 1 s under Sentinel, which
names the new master when it looks the next time; where a master hangs, up to the 2 s of a poller's call more."""

PROMOTED_S = 75.0
"""It takes two to five; a sentinel that stood still for two does nothing for another 30."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def engine(service: Service, name: str) -> Iterator[Engine]:
    with Engine(service.url, name=name, shards=SHARDS, timeout=PROMOTED_S + 15) as engine:
        engine.start()
        yield engine


class Lost:
    """The master of shard 0, killed or hung; and its replica, promoted."""

    def __init__(self, service: Service, name: str) -> None:
        first = keys_of(name, SHARDS)[0]
        self.master, self.replica = service.pair(first.slot)
        self.shards = [keys for keys in keys_of(name, SHARDS) if service.pair(keys.slot)[0] is self.master]

    def wait_replicated(self) -> None:
        """The replica has all that the master has now; meanwhile it gets more, so they may never be in step."""
        offset = int(self.master.ask("ROLE")[1])
        wait_until(lambda: int(self.replica.ask("ROLE")[4]) >= offset, "the replica has everything")

    def kill(self) -> None:
        """Returns when the replica says that it is the master."""
        self.master.kill()
        self._wait_replaced()

    def hang(self) -> None:
        """The same of a master that keeps its connections and says nothing."""
        self.master.pause()
        self._wait_replaced()

    def _wait_replaced(self) -> None:
        wait_until(self._promoted, "the replica is promoted", timeout=PROMOTED_S)

    def _promoted(self) -> bool:
        try:
            return bool(self.replica.ask("ROLE")[0] == "master")
        except (redis.ConnectionError, redis.TimeoutError):
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
    lost.wait_replicated()
    if how == "killed":
        lost.kill()
    else:
        lost.hang()
    waiting = {keys.shard: (keys, dispatched(lost.replica, keys)) for keys in lost.shards}
    assert waiting

    def all_served() -> bool:
        for shard, (keys, before) in list(waiting.items()):
            # or it was dispatched to its end before we looked
            if dispatched(lost.replica, keys) > before or not lost.replica.ask("ZCARD", keys.due):
                del waiting[shard]
        return not waiting

    wait_until(all_served, "every shard of the new master is served", timeout=RESUMED_S)
    wait_until(lambda: engine.stats().ready == STEADY, "all is dispatched")
    deliveries = claim(engine.consumer(), STEADY)
    assert sorted(delivery.id for delivery in deliveries) == sorted(pushed)
    engine.consumer().ack(deliveries)
    wait_until(lambda: {shard.poller for shard in engine.stats().shards} == {"running"}, "every poller is well")


def test_what_was_to_be_replicated_is_there(engine: Engine, service: Service, name: str) -> None:
    confirmed: list[str] = []
    promoted, end = threading.Event(), threading.Event()

    def push() -> None:
        while not end.is_set():
            try:
                confirmed.extend(
                    engine.push_many([Task(0, delay=FAR_S) for _ in range(SHARDS // 2)], durability="replicated")
                )
                confirmed.append(engine.push(0, delay=FAR_S, durability="replicated"))
            except (NotReplicated, DurabilityUnavailable):
                # the new master has no replica: nothing more will be confirmed there; before, one was only slow
                if promoted.is_set():
                    end.set()

    lost = Lost(service, name)
    with ThreadPoolExecutor(3) as threads:
        pushing = [threads.submit(push) for _ in range(3)]
        try:
            wait_until(lambda: len(confirmed) > 1000, "pushes are confirmed")
            before = len(confirmed)
            lost.kill()
            promoted.set()
            wait_until(end.is_set, "pushes reach the new master", timeout=PROMOTED_S)
        finally:
            end.set()
        for thread in pushing:
            thread.result()
    assert before > 1000
    assert [id for id in confirmed if engine.get(id) is None] == []
