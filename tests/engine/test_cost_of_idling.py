"""The cost of an idle engine: commands, those inside of scripts included, and CPU.

10,000 pending tasks stand for a million: an idle step looks at the head of a sorted set, so neither the number of
commands nor, but for a logarithm, their cost depends on how many wait behind it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.keys import control_keys, shard_keys
from tests.support.servers import Servers
from tests.support.stalls import Stopwatch
from tests.support.traffic import script_calls
from tests.support.waiting import wait_until

SHARDS = 64
PENDING = 10_000
FAR_S = 86_400.0

WINDOW_S = 26.0
"""Longer than the longest sleep of a poller, so that every one of them has looked at least once."""

PER_SHARD = 0.3
HEARTBEAT = 4.0
"""Commands a second that may be spent."""

ONCE = 11.0
"""Commands for each shard that come once in a while, and may fall into this one: the history adds up each shard once a
minute, by a script of ten, and shards out of use are looked at a moment after the start.
"""

CPU = 0.02
"""Of one core."""

OF_SERVERS = {"info", "replconf|ack", "replconf", "replconf|getack", "ping"}
"""INFO is the measuring; the others are between a replica and its master. A subscriber's PING is one in five seconds
for each node, and takes the same name."""


@pytest.fixture
def places(single: Server, cluster: Cluster) -> Iterator[list[Servers]]:
    """Both at the same time, because the test takes long."""
    with ExitStack() as stack:
        yield [stack.enter_context(Servers(where.url)) for where in (single, cluster)]


def counts(client: redis.Redis) -> Counter[str]:
    stats = client.info("commandstats")
    return Counter({verb.removeprefix("cmdstat_"): told["calls"] for verb, told in stats.items()})


def asleep(servers: Servers, name: str) -> Callable[[], bool]:
    """Whether every poller has seen that there is nothing to do for long."""
    until = time.time() * 1000 + FAR_S * 500

    def told() -> bool:
        keys = (shard_keys(name, shard) for shard in range(SHARDS))
        return all(float(servers.ask(k.slot, "HGET", k.meta, "wake_at") or 0) > until for k in keys)

    return told


def has_history(servers: Servers, name: str) -> Callable[[], bool]:
    keys = control_keys(name)
    return lambda: bool(servers.ask(keys.slot, "EXISTS", keys.history))


def calm(places: list[Servers]) -> bool:
    """Whether there were heartbeats only for half a second in which this process did not stand still.

    A poller that is not subscribed yet looks every 250 ms, and once more when it does.
    """
    before = [script_calls(servers) for servers in places]
    with Stopwatch() as watch:
        time.sleep(0.6)
    after = [script_calls(servers) for servers in places]
    return watch.took > 0.5 and all(last - first <= 2 for first, last in zip(before, after, strict=True))


@pytest.mark.slow
def test_idleness_costs_next_to_nothing(places: list[Servers], single: Server, cluster: Cluster, name: str) -> None:
    with ExitStack() as stack:
        for servers, url in zip(places, (single.url, cluster.url), strict=True):
            engine = stack.enter_context(Engine(url, name=name, shards=SHARDS))
            engine.push_many([Task(n, delay=FAR_S) for n in range(PENDING)])
            engine.start()
            wait_until(asleep(servers, name), "all pollers sleep")
            wait_until(
                has_history(servers, name), "the history has begun: that counts all shards, and then once a minute"
            )
        wait_until(lambda: calm(places) and calm(places), "all of them are subscribed, and sleep for long")

        before = [[counts(client) for client in servers.masters] for servers in places]
        cpu, began = time.process_time(), time.monotonic()
        time.sleep(WINDOW_S)  # not to wait for anything: an idle while is what is measured
        cpu, took = time.process_time() - cpu, time.monotonic() - began
        after = [[counts(client) for client in servers.masters] for servers in places]

    for servers, earlier, later in zip(places, before, after, strict=True):
        for client, first, last in zip(servers.masters, earlier, later, strict=True):
            spent = Counter({verb: n for verb, n in (last - first).items() if verb not in OF_SERVERS})
            here = sum(servers.master(shard_keys(name, shard).slot) is client for shard in range(SHARDS))
            beats = HEARTBEAT if servers.master(control_keys(name).slot) is client else 0.0
            assert spent.total() - ONCE * here <= (PER_SHARD * here + beats) * took, (here, spent)
    assert cpu / took < CPU  # both engines together, and what the test runner does besides
