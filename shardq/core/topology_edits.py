"""Edits of the stored topology: how one is published, the one by which an engine begins to have keys, and those that
pause topics. Operations, for both drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from shardq.core.layout.topology import Topology
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import catch_up, topology_in_force
from shardq.core.topology_upkeep import WRITERS, check_writer, declare, open_shards, refresh
from shardq.errors import AccessDenied, BadInput

SLACK_MS = 1000
"""A pause that ends so much earlier than is asked for is let be: many handlers may ask for one at once."""


def edit_topology(cache: TopologyCache, edit: Callable[[Topology], Topology]) -> Operation[Topology]:
    """Publishes an edited topology under the next epoch; edits again when another process was first, or when shards
    know a newer one that a failover has taken back. What ``edit`` refuses with BadInput is refused by the present
    topology.

    Published before the shards are told: a caller that is then refused as stale finds the newer one to read. While a
    number of shards is announced nothing else may change: what follows it is settled.
    """
    while True:
        known = yield from topology_in_force(cache)
        try:
            edited = edit(known)
        except BadInput:
            # by what this process knows, which may be old
            yield from refresh(cache)
            if cache.topology.stamp == known.stamp:
                raise
            continue
        if edited == known:
            # so it seems: this process may know an old one, and then there is something to change
            yield from refresh(cache)
            if cache.topology.stamp == known.stamp:
                yield from check_writer(cache)
                return known
            continue
        if (yield from declare(cache, known, edited.following())):
            ahead = yield from open_shards(cache, cache.span())
            if ahead is None:
                return cache.topology
            yield from catch_up(cache, *ahead)


def take_up_keys(cache: TopologyCache) -> Operation[None]:
    """Returns when all shards know that tasks may have keys. Who knows an older topology is refused from then on."""
    if not cache.topology.is_keyed:
        yield from refresh(cache)
    if cache.topology.is_keyed:  # as another process has begun, maybe: then this one need not be allowed to
        return
    try:
        yield from edit_topology(cache, lambda topology: msgspec.structs.replace(topology, is_keyed=True))
    except AccessDenied as exc:
        raise AccessDenied(
            f"{cache.name!r} has no keys yet, and the user of this process may not begin with them: call "
            f"engine.limit(topic, per_key=1) once, as a user of the role {WRITERS}: {exc}"
        ) from exc


def with_pause(topology: Topology, topic: str, *, pause: bool, until_ms: int = 0) -> Topology:
    """``until_ms``: the instant at which the pause ends by itself; 0: none."""
    return topology.with_topic(topic, paused=pause, paused_until=until_ms)


def with_holds(topology: Topology, until_ms: Mapping[str, int]) -> Topology:
    """The topology by which topics are paused until these instants, at least: a longer pause stays as it is."""
    for topic, instant_ms in until_ms.items():
        known = topology.settings_of(topic)
        if not known.paused or 0 < known.paused_until < instant_ms - SLACK_MS:
            topology = with_pause(topology, topic, pause=True, until_ms=instant_ms)
    return topology


def without_ended_pauses(topology: Topology, now_ms: float) -> Topology:
    """The topology by which topics are given out again whose pause has ended by now."""
    for topic, until_ms in topology.pauses.items():
        if until_ms <= now_ms:
            topology = with_pause(topology, topic, pause=False)
    return topology
