"""Where a suite works: fresh servers, engines on them, and what the servers themselves say of the work.

Made by the command line, one for each suite, so that no suite inherits another's memory or statistics. Everything is
seen from outside the engine: by plain commands on connections of its own.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import redis

from bench.cores import Cores
from bench.figures import Spent
from cluster import servers
from cluster.cluster import Cluster
from cluster.ports import HOST
from cluster.server import Server
from shardq import Engine
from shardq.calls.request import Command
from shardq.drivers.settings import Settings
from shardq.drivers.sync import Driver
from shardq.layout.keys import ShardKeys, shard_keys

T = TypeVar("T")

Scale = Literal["quick", "usual", "big"]

SHARDS = 16
"""What an engine has by default."""

MASTERS = 3
REPLICAS = 1

CALM_NODE_TIMEOUT_MS = 15_000
"""Six processes may share a core with a burst: nothing should fail over meanwhile."""

LOOK_S = 0.005
"""Between two looks at a key: one small command, about 1 % of the server, and of the client, at most."""

MEMORY_LOOK_S = 0.25
"""Two looks at the same figure, with two rounds of the server's housekeeping (10 a second) between them."""

MEMORY_NOISE = 4096
"""Bytes. Looking itself changes some: the answers wait in buffers."""

RETRY_FOR_S = 300.0
FLUSH_TIMEOUT_S = 120.0
"""Freeing some million tasks takes a server seconds."""


class Stand:
    """The servers of one suite. ``say`` shows what is being done now."""

    def __init__(self, url: str, masters: Sequence[Server], *, scale: Scale, say: Callable[[str], None]) -> None:
        self.url = url
        self.masters = masters
        self.scale = scale
        self.say = say
        self.driver = Driver(Settings.from_url(url))
        """For what an engine does not offer."""
        self._clients: list[redis.Redis] = []

    def __repr__(self) -> str:
        return f"<Stand on {self.url}, {self.scale}>"

    @property
    def is_cluster(self) -> bool:
        return self.driver.is_cluster

    def __enter__(self) -> Self:
        self.driver.open()
        self._clients = [master.client(decode=True, timeout=FLUSH_TIMEOUT_S) for master in self.masters]
        return self

    def __exit__(self, *exc: object) -> None:
        self.driver.close()
        for client in self._clients:
            client.close()

    def pick(self, quick: T, usual: T, big: T | None = None) -> T:
        """The size for this run."""
        if self.scale == "big" and big is not None:
            return big
        return quick if self.scale == "quick" else usual

    @contextlib.contextmanager
    def engine(self, *, shards: int = SHARDS, codec: str = "json") -> Iterator[Engine]:
        """An open engine under a name of its own, without pollers. At the end the servers are emptied."""
        with Engine(self.url, name=f"bench-{secrets.token_hex(4)}", shards=shards, codec=codec) as engine:
            yield engine
        self.clear()

    def clear(self) -> None:
        self.ask_all("FLUSHALL", "SYNC")

    def redis_py(self) -> redis.Redis | redis.RedisCluster:
        """A client of redis-py as somebody makes it who gives no options; the caller closes it."""
        first = self.masters[0]
        if self.is_cluster:
            return redis.RedisCluster(host=HOST, port=first.port)
        return redis.Redis(unix_socket_path=str(first.socket)) if first.socket else redis.Redis(port=first.port)

    def ask_all(self, *words: str | int) -> list[Any]:
        """One command to every master."""
        commands: list[Callable[..., Any]] = [client.execute_command for client in self._clients]
        return [command(*words) for command in commands]

    def server_of(self, slot: int) -> Server:
        """The master that serves a slot."""
        address = self.driver.node_of(slot)
        return next((master for master in self.masters if master.address == address), self.masters[0])

    # ---- what servers say

    def cpus_s(self) -> list[float]:
        """CPU time of each master so far, every thread of it."""
        told = self.ask_all("INFO", "cpu")
        return [float(said["used_cpu_user"]) + float(said["used_cpu_sys"]) for said in told]

    def cpu_s(self) -> float:
        """CPU time of all masters so far."""
        return sum(self.cpus_s())

    def memory(self) -> int:
        """Bytes in use by all masters, without the buffers of replication; waits until the number settles."""
        return settled(self._used_memory)

    def _used_memory(self) -> int:
        told = self.ask_all("INFO", "memory")
        return sum(int(said["used_memory"]) - int(said["mem_total_replication_buffers"]) for said in told)

    def commands(self) -> dict[str, int]:
        """How often each command was executed by the masters since ``reset_stats``, those inside scripts included."""
        counts: dict[str, int] = {}
        for said in self.ask_all("INFO", "commandstats"):
            for name, stats in said.items():
                command = name.removeprefix("cmdstat_")
                counts[command] = counts.get(command, 0) + stats["calls"]
        return counts

    def script_us(self) -> dict[str, float]:
        """How long a master was held by a script since ``reset_stats``: percentiles in µs, of the master most held."""
        held = [
            {share: float(us) for share, us in said["latency_percentiles_usec_evalsha"].items()}
            for said in self.ask_all("INFO", "latencystats")
            if "latency_percentiles_usec_evalsha" in said
        ]
        return max(held, key=lambda shares: shares["p99"], default={})

    def reset_stats(self) -> None:
        # 100 is the longest, which is not told by default
        self.ask_all("CONFIG", "SET", "latency-tracking-info-percentiles", "50 99 99.9 100")
        self.ask_all("CONFIG", "RESETSTAT")

    @contextlib.contextmanager
    def metering(self) -> Iterator[Spent]:
        """What the work inside takes; read it afterwards."""
        spent = Spent()
        server, client, began = self.cpu_s(), time.process_time(), time.perf_counter()
        yield spent
        spent.wall_s = time.perf_counter() - began
        spent.client_s = time.process_time() - client
        spent.server_s = self.cpu_s() - server

    # ---- waiting

    def until_gone(self, engine: Engine, key: Callable[[ShardKeys], str]) -> float:
        """Waits until this key is in no shard any more; answers when that was, as ``time.time()`` tells.

        Keys that hold nothing do not exist, so ``due`` is gone when all is ready and ``task`` when all is acknowledged.
        """
        for shard in range(engine.topology.shards):
            keys = shard_keys(engine.name, shard)
            self._until_gone(Command(keys.slot, ("EXISTS", key(keys)), int))
        return time.time()

    def until_left(self, engine: Engine, most: int) -> int:
        """Waits until at most so many tasks, in whatever state, are left; answers how many are."""
        keys = [shard_keys(engine.name, shard) for shard in range(engine.topology.shards)]
        counts = [Command(shard.slot, ("HLEN", shard.task), int) for shard in keys]

        def left() -> int:
            return sum(self.driver.call(count) for count in counts)

        self.until(lambda: left() <= most, f"{most:,} tasks are left")
        return left()

    def _until_gone(self, exists: Command[int]) -> None:
        self.until(lambda: self.driver.call(exists) == 0, f"{exists.words[1]!r} is gone")

    def until(self, met: Callable[[], bool], what: str, *, look_s: float = LOOK_S) -> float:
        """Waits until a condition is met; answers when it was, as ``time.time()`` tells."""
        deadline = time.monotonic() + RETRY_FOR_S
        while not met():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{RETRY_FOR_S:.0f} s were not enough until {what}")
            time.sleep(look_s)
        return time.time()


def settled(used: Callable[[], int]) -> int:
    """Waits until two looks at the memory in use hardly differ."""
    last, now = 0, used()
    while abs(now - last) > MEMORY_NOISE:
        time.sleep(MEMORY_LOOK_S)
        last, now = now, used()
    return now


@contextlib.contextmanager
def clustered(
    binary: Path, *, masters: int, replicas: int, cores: Cores, node_timeout_ms: int = CALM_NODE_TIMEOUT_MS
) -> Iterator[Cluster]:
    """Starts a cluster on the servers' cores, without persistence, and ends it."""
    with contextlib.ExitStack() as stack:
        with cores.for_servers():
            cluster = Cluster(binary, masters=masters, replicas=replicas, node_timeout_ms=node_timeout_ms)
            stack.enter_context(cluster)
        yield cluster


@contextlib.contextmanager
def standing(
    kind: str, *, cluster: bool, unix: bool, cores: Cores, scale: Scale, say: Callable[[str], None]
) -> Iterator[Stand]:
    """Starts servers of one kind, without persistence, and ends them."""
    binary = servers.binary(kind)
    with contextlib.ExitStack() as stack:
        if cluster:
            nodes = stack.enter_context(clustered(binary, masters=MASTERS, replicas=REPLICAS, cores=cores))
            url, masters = nodes.url, list[Server](nodes.masters)
        else:
            with cores.for_servers():
                server = stack.enter_context(Server(binary, unix=unix))
            url, masters = server.url, [server]
        yield stack.enter_context(Stand(url, masters, scale=scale, say=say))
