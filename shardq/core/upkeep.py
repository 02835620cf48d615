"""The upkeep of the stored topology: it is created, read, published, and restored where a failover lost it; and shards
are opened under it. Operations, for both drivers. Changes of the number of shards are completed by ``recovery``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from shardq.core.calls import control
from shardq.core.calls.request import Stale
from shardq.core.layout.formats import FORMAT
from shardq.core.layout.keys import ShardKeys, control_keys
from shardq.core.layout.topology import EngineSettings, Topology
from shardq.core.operation import Many, Operation
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ServerFault, ShardqError


def create_topology(name: str, shards: int, settings: EngineSettings | None = None) -> Operation[Topology]:
    """Returns the topology of this name: the stored one, or a new one of ``shards`` shards, with all of them opened."""
    first = Topology(epoch=1, shards=shards, settings=settings or EngineSettings(), format=FORMAT)
    answer = yield control.declare(control_keys(name), 0, first.to_fields())
    topology = Topology.from_fields(answer.fields)
    if answer.changed:
        cache = TopologyCache(name, topology)
        yield from open_shards(cache, cache.span())
    return topology


def open_shards(
    cache: TopologyCache, shards: Iterable[ShardKeys], *, topology: Topology | None = None, anew: bool = False
) -> Operation[tuple[ShardKeys, Stale] | None]:
    """Writes an epoch and a copy of its topology to these shards, unless they have a newer one. Returns the shard with
    the newest of those, and what it answered.

    No process is registered as waiting in a shard that was empty: those who wait are told to register again. ``anew``:
    the shards are to be used from now on.
    """
    known = cache.topology if topology is None else topology
    text = known.to_text()
    requests = {keys: control.open_shard(keys, known.epoch, text, anew=anew) for keys in shards}
    empty: list[int] = []
    ahead: list[tuple[ShardKeys, Stale]] = []
    failure: ShardqError | None = None
    for keys, result in (yield Many(requests)):
        if isinstance(result, Stale):
            ahead.append((keys, result))
        elif isinstance(result, ShardqError):
            failure = failure or result
        elif result:
            empty.append(keys.shard)
    if empty:
        # A process that does not hear it asks by itself after a while.
        with contextlib.suppress(ServerFault):
            yield control.tell_opened(cache.control, sorted(empty))
    if failure is not None:
        raise failure
    return max(ahead, key=lambda answered: answered[1].epoch, default=None)


def refresh(cache: TopologyCache) -> Operation[None]:
    """Reads the stored topology. One that is older than the known one (a failover lost the newer) is restored."""
    yield from _learn(cache, (yield control.read_topology(cache.control)))


def declare(cache: TopologyCache, seen_epoch: int, topology: Topology) -> Operation[bool]:
    """Publishes a topology in place of the one of ``seen_epoch``, and learns what is published then. Returns True if it
    is ours. If not, and a failover has lost the known one, that is restored: who begins again meets it.
    """
    answer = yield control.declare(cache.control, seen_epoch, topology.to_fields())
    yield from _learn(cache, answer.fields)
    return bool(answer.changed)


def _learn(cache: TopologyCache, fields: control.Fields) -> Operation[None]:
    """Learns the stored topology; where there is none, or an older one than the known one, stores that, once."""
    stored = Topology.from_fields(fields) if fields else None
    if stored is not None:
        cache.learn(stored)
    known, epoch = cache.topology, stored.epoch if stored else 0
    if epoch < known.epoch:
        answer = yield control.declare(cache.control, epoch, known.to_fields())
        if answer.fields:
            cache.learn(Topology.from_fields(answer.fields))
