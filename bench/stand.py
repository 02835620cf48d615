"""A suite works on a stand: fresh servers, engines on them, and the servers' own account of the work.

The command line makes one for each suite, so that no suite inherits the memory or the statistics of another. Everything
is seen from outside the engine, by plain commands on connections of its own.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import redis

from bench.cores import Cores
from bench.figures import Figure, Spent
from cluster import servers
from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine
from shardq.core.calls.request import Command
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys, shard_keys

T = TypeVar("T")

Scale = Literal["quick", "usual", "big"]

SHARDS = 16
"""The default of an engine."""

CALM_NODE_TIMEOUT_MS = 15_000
"""Six processes may share a core with a burst: none should fail over because it is slow."""

LOOK_S = 0.005
"""The time between two looks at a key. A look is one small command: it takes about 1 % of server and client at most."""

MEMORY_LOOK_S = 0.25
"""The time between two looks at the memory. The server's housekeeping, 10 times a second, runs twice meanwhile."""

MEMORY_NOISE = 4096
"""In bytes. Looks change the memory too, because their answers wait in buffers."""

RETRY_FOR_S = 300.0
FLUSH_TIMEOUT_S = 120.0
"""A server needs seconds to free some million tasks."""


class Stand:
    """The servers of one suite. ``say`` shows what is being done now."""

    def __init__(self, url: str, masters: Sequence[Server], *, scale: Scale, say: Callable[[str], None]) -> None:
        self.url = url
        self.masters = masters
        self.scale = scale
        self.say = say
        self.driver = Driver(Settings.from_url(url))
        """Carries commands that an engine does not offer."""
        self._clients: list[redis.Redis] = []

    def __repr__(self) -> str:
        return f"<Stand on {self.url}, {self.scale}>"

    def __enter__(self) -> Self:
        self.driver.open()
        self._clients = [master.client(decode=True, timeout=FLUSH_TIMEOUT_S) for master in self.masters]
        return self

    def __exit__(self, *exc: object) -> None:
        self.driver.close()
        for client in self._clients:
            client.close()

    def pick(self, quick: T, usual: T, big: T | None = None) -> T:
        """Returns the size for this run."""
        if self.scale == "big" and big is not None:
            return big
        return quick if self.scale == "quick" else usual

    @contextlib.contextmanager
    def engine(self, *, shards: int = SHARDS, codec: str = "json") -> Iterator[Engine]:
        """Opens an engine under a name of its own, without pollers. The servers are emptied at the end."""
        with Engine(self.url, name=f"bench-{secrets.token_hex(4)}", shards=shards, codec=codec) as engine:
            yield engine
        self.clear()

    def clear(self) -> None:
        self.ask_all("FLUSHALL", "SYNC")

    def redis_py(self) -> redis.Redis:
        """Returns a client of redis-py with its default options. The caller closes it."""
        return redis.Redis(port=self.masters[0].port)

    def ask_all(self, *words: str | int) -> list[Any]:
        """Sends one command to every master, and returns the answers."""
        commands: list[Callable[..., Any]] = [client.execute_command for client in self._clients]
        return [command(*words) for command in commands]

    def server_of(self, slot: int) -> Server:
        """Returns the master that serves a slot."""
        address = self.driver.node_of(slot)
        return next((master for master in self.masters if master.address == address), self.masters[0])

    # ---- what servers say

    def cpus_s(self) -> list[float]:
        """Returns the CPU time of each master so far, all of its threads together."""
        told = self.ask_all("INFO", "cpu")
        return [float(said["used_cpu_user"]) + float(said["used_cpu_sys"]) for said in told]

    def cpu_s(self) -> float:
        """Returns the CPU time of all masters so far."""
        return sum(self.cpus_s())

    def memory(self) -> int:
        """Returns the bytes in use by all masters without the buffers of replication, as soon as the number settles."""
        return settled(self._used_memory)

    def _used_memory(self) -> int:
        told = self.ask_all("INFO", "memory")
        return sum(int(said["used_memory"]) - int(said["mem_total_replication_buffers"]) for said in told)

    def commands(self) -> dict[str, int]:
        """Returns how often masters executed each command since ``reset_stats``, those inside scripts included."""
        counts: dict[str, int] = {}
        for said in self.ask_all("INFO", "commandstats"):
            for name, stats in said.items():
                command = name.removeprefix("cmdstat_")
                counts[command] = counts.get(command, 0) + stats["calls"]
        return counts

    def script_us(self) -> dict[str, float]:
        """Returns how long scripts held a master since ``reset_stats``: percentiles in µs of the most held one."""
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
        """Measures the work of its block. The result is complete afterwards."""
        spent = Spent()
        server, client, began = self.cpu_s(), time.process_time(), time.perf_counter()
        yield spent
        spent.wall_s = time.perf_counter() - began
        spent.client_s = time.process_time() - client
        spent.server_s = self.cpu_s() - server

    # ---- waiting

    def until_gone(self, engine: Engine, key: Callable[[ShardKeys], str]) -> float:
        """Waits until no shard has this key any more, and returns the instant in the seconds of ``time.time()``.

        Keys that hold nothing do not exist: ``due`` is gone when all is ready, and ``task`` when all is acknowledged.
        """
        for shard in range(engine.topology.shards):
            keys = shard_keys(engine.name, shard)
            self._until_gone(Command(keys.slot, ("EXISTS", key(keys)), int))
        return time.time()

    def until_left(self, engine: Engine, most: int) -> int:
        """Waits until at most so many tasks are left, in whatever state, and returns their number."""
        keys = [shard_keys(engine.name, shard) for shard in range(engine.topology.shards)]
        counts = [Command(shard.slot, ("HLEN", shard.task), int) for shard in keys]

        def left() -> int:
            return sum(self.driver.call(count) for count in counts)

        self.until(lambda: left() <= most, f"{most:,} tasks are left")
        return left()

    def _until_gone(self, exists: Command[int]) -> None:
        self.until(lambda: self.driver.call(exists) == 0, f"{exists.words[1]!r} is gone")

    def until(self, met: Callable[[], bool], what: str, *, look_s: float = LOOK_S) -> float:
        """Waits until a condition is met, and returns the instant in the seconds of ``time.time()``."""
        deadline = time.monotonic() + RETRY_FOR_S
        while not met():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {RETRY_FOR_S:.0f} s in vain until {what}")
            time.sleep(look_s)
        return time.time()


@dataclass(frozen=True, slots=True)
class Suite:
    """What ``python -m bench`` measures under one name. ``bench.suites`` has the list of them."""

    name: str
    about: str
    """One line for ``--list``."""
    measure: Callable[[Stand], Iterator[Figure]]
    """Yields figures as they are found, on servers of its own."""


def settled(used: Callable[[], int]) -> int:
    """Waits until two looks at the memory in use hardly differ, and returns the last."""
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
def standing(kind: str, *, cores: Cores, scale: Scale, say: Callable[[str], None]) -> Iterator[Stand]:
    """Starts a server of one kind, without persistence, and ends it."""
    with contextlib.ExitStack() as stack:
        with cores.for_servers():
            server = stack.enter_context(Server(servers.binary(kind)))
        yield stack.enter_context(Stand(server.url, [server], scale=scale, say=say))
