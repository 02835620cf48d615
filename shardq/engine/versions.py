"""Changes that earlier builds of shardq can't read: a newer format of what is stored, a further feature. Both are made
when no process lives that would not understand them.

Processes that only push send no heartbeat, and are not seen. They are refused by the first shard that they meet, read
the topology, and say what is wrong: nothing is done by half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from shardq.core.calls import control
from shardq.core.fleet.member import Member, fleet
from shardq.core.layout import formats
from shardq.core.layout.topology import ColdTable, Topology, new_word
from shardq.core.model.ids import quoted_topic
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.core.upkeep import refresh
from shardq.engine.control import edit_topology, note
from shardq.errors import IncompatibleVersion, InvalidOption

if TYPE_CHECKING:
    from shardq.features.cold.cold import Cold

NAMED = 3
"""The most processes that a sentence names."""


def upgrade(cache: TopologyCache) -> Operation[int]:
    """Raises the format to that of this build, with the settings of topics in fields of their own. Returns it."""
    yield from refresh(cache)
    if _raised(cache.topology, 0) != cache.topology:
        what = f"format {formats.FORMAT}"
        yield from _refused_by(
            cache,
            lambda member: member.format < formats.FORMAT or formats.SETTINGS not in member.features,
            what,
        )
        now_ms: int = yield control.clock_ms(cache.control)
        yield from edit_topology(cache, lambda topology: _raised(topology, now_ms))
        yield from note(cache, f"upgraded to {what}")
    return cache.topology.format


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
    yield from _refused_by(cache, lambda member: feature not in member.features, f"the feature {feature!r}")
    yield from edit_topology(cache, lambda topology: _with(topology, feature))
    yield from note(cache, f"uses the feature {feature!r} from now on")


def use_cold(cache: TopologyCache, cold: Cold, identity: str) -> Operation[ColdTable]:
    """Makes the engine use a table for its far tasks, if it has none yet. Returns the note of its table, which may be
    another one.
    """
    asked = cold.asked(identity)
    if cache.topology.cold is None:
        yield from use_feature(cache, formats.COLD)
        yield from edit_topology(cache, lambda topology: msgspec.structs.replace(topology, cold=topology.cold or asked))
    stored = cache.topology.cold
    assert stored is not None, "it was set"
    if stored.identity == identity and not set(asked.topics) <= set(stored.topics):
        yield from edit_topology(cache, lambda topology: _with_cold_topics(topology, asked.topics))
        yield from note(cache, f"has the topics {', '.join(map(quoted_topic, asked.topics))} in its cold store")
        stored = cache.topology.cold or stored
    if cold.given_after_s is not None and cold.given_after_s != stored.after:
        raise InvalidOption(
            f"cold_after={cold.given_after_s:g} is not possible: the engine has {stored.after:g}, which all of its "
            "processes go by; give that, or leave it out"
        )
    return stored


def _with_cold_topics(topology: Topology, topics: Iterable[str]) -> Topology:
    assert topology.cold is not None, "it was set"
    cold = msgspec.structs.replace(topology.cold, topics=tuple(sorted({*topology.cold.topics, *topics})))
    return msgspec.structs.replace(topology, cold=cold)


def _raised(topology: Topology, now_ms: int) -> Topology:
    raised = _with(msgspec.structs.replace(topology, format=max(topology.format, formats.FORMAT)), formats.SETTINGS)
    return raised if topology.engine else msgspec.structs.replace(raised, engine=new_word(), created=now_ms)


def _with(topology: Topology, feature: str) -> Topology:
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
