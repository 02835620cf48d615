"""Changes that other builds of shardq can't read: a newer format of what is stored, a further feature. Both are made
when no process lives that would not understand them. What all can read is changed as ever, whatever builds run.

Processes that only push send no heartbeat, and are not seen. They are refused by the first shard that they meet, read
the topology, and say what is wrong: nothing is done by half.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shardq.core.fleet.member import Member, fleet
from shardq.core.layout import formats
from shardq.core.layout.topology import Topology
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import edit_topology
from shardq.core.topology_upkeep import refresh
from shardq.engine.engine_wide import note
from shardq.errors import IncompatibleVersion

NAMED = 3
"""The most processes that a sentence names."""


def upgrade(cache: TopologyCache) -> Operation[int]:
    """Raises the format to that of this build. Returns it."""
    yield from refresh(cache)
    if cache.topology.format < formats.FORMAT:
        what = f"format {formats.FORMAT}"
        yield from _refused_by(cache, lambda member: member.format < formats.FORMAT, what)
        yield from edit_topology(cache, _raised)
        yield from note(cache, f"upgraded to {what}")
    return cache.topology.format


def _raised(topology: Topology) -> Topology:
    return msgspec.structs.replace(topology, format=max(topology.format, formats.FORMAT))


def use_feature(cache: TopologyCache, feature: str) -> Operation[None]:
    """Makes the engine use a feature, from now on and for good."""
    yield from refresh(cache)
    if feature not in cache.topology.features:
        yield from _refused_by(cache, lambda member: feature not in member.features, f"the feature {feature!r}")
        yield from edit_topology(cache, lambda topology: _with_feature(topology, feature))
        yield from note(cache, f"uses the feature {feature!r} from now on")


def _with_feature(topology: Topology, feature: str) -> Topology:
    return msgspec.structs.replace(topology, features=tuple(sorted({*topology.features, feature})))


def _refused_by(cache: TopologyCache, is_older: Callable[[Member], bool], what: str) -> Operation[None]:
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
