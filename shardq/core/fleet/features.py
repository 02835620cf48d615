"""Features: what an engine uses that earlier builds do not know. One comes in use when no process lives that lacks it,
and stays.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shardq.core.edits import edit_topology
from shardq.core.fleet.member import Member, fleet
from shardq.core.layout.formats import KEYS
from shardq.core.layout.topology import Topology
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.core.upkeep import WRITERS, refresh
from shardq.errors import AccessDenied, IncompatibleVersion

NAMED = 3
"""The most processes that a sentence names."""


def use_feature(cache: TopologyCache, feature: str) -> Operation[None]:
    """Makes the engine use a feature, from now on and for good."""
    yield from refresh(cache)
    if feature in cache.topology.features:
        return
    if not cache.topology.format:
        # builds from before know of no features, and would not refuse them
        raise IncompatibleVersion(
            f"the feature {feature!r} can't be used: the engine is stored in format 0; `shardq upgrade` raises it"
        )
    yield from refused_by(cache, lambda member: feature not in member.features, f"the feature {feature!r}")
    yield from edit_topology(cache, lambda topology: with_feature(topology, feature))


def take_up_keys(cache: TopologyCache) -> Operation[None]:
    """Returns when all shards know that tasks may have keys. Who knows an older topology is refused from then on."""
    if cache.topology.is_keyed:
        return
    try:
        yield from use_feature(cache, KEYS)
    except AccessDenied as exc:
        raise AccessDenied(
            f"{cache.name!r} has no keys yet, and the user of this process may not begin with them: call "
            f"engine.limit(topic, per_key=1) once, as a user of the role {WRITERS}: {exc}"
        ) from exc


def with_feature(topology: Topology, feature: str) -> Topology:
    """The topology by which an engine uses a feature."""
    return msgspec.structs.replace(topology, features=tuple(sorted({*topology.features, feature})))


def refused_by(cache: TopologyCache, is_older: Callable[[Member], bool], what: str) -> Operation[None]:
    """Raises IncompatibleVersion if a process lives that is older."""
    older = [member for member in (yield from fleet(cache.control)) if is_older(member)]
    if older:
        named = ", ".join(_named(member) for member in older[:NAMED])
        more = f" and {len(older) - NAMED} more" if len(older) > NAMED else ""
        raise IncompatibleVersion(
            f"nothing is changed: processes that do not know {what} live still: {named}{more}; bring them to this "
            "version, or end them, and repeat it (one that was killed counts as alive for up to 30 s)"
        )


def _named(member: Member) -> str:
    where = f"{member.host}:{member.pid}" if member.host else member.name
    return f"the {member.kind} {where} (shardq {member.version or 'of an unknown version'})"
