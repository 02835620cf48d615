"""Changes that earlier builds of shardq can't read: a newer format of what is stored, a further feature. Both are made
when no process lives that would not understand them.

Processes that only push send no heartbeat, and are not seen. They are refused by the first shard that they meet, read
the topology, and say what is wrong: nothing is done by half.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shardq.core.calls import control
from shardq.core.edits import edit_topology
from shardq.core.fleet.features import refused_by, use_feature, with_feature
from shardq.core.layout import formats
from shardq.core.layout.topology import ColdTable, Topology, new_word
from shardq.core.model.ids import quoted_topic
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.core.upkeep import refresh
from shardq.engine.control import note
from shardq.errors import InvalidOption

if TYPE_CHECKING:
    from shardq.features.cold.cold import Cold


def upgrade(cache: TopologyCache) -> Operation[int]:
    """Raises the format to that of this build, with the settings of topics in fields of their own. Returns it."""
    yield from refresh(cache)
    if _raised(cache.topology, 0) != cache.topology:
        what = f"format {formats.FORMAT}"
        yield from refused_by(
            cache,
            lambda member: member.format < formats.FORMAT or formats.SETTINGS not in member.features,
            what,
        )
        now_ms: int = yield control.clock_ms(cache.control)
        yield from edit_topology(cache, lambda topology: _raised(topology, now_ms))
        yield from note(cache, f"upgraded to {what}")
    return cache.topology.format


def use_cold(cache: TopologyCache, cold: Cold, identity: str) -> Operation[ColdTable]:
    """Makes the engine use a table for its far tasks, if it has none yet. Returns the note of its table, which may be
    another one.
    """
    asked = cold.asked(identity)
    if cache.topology.cold is None:
        yield from use_feature(cache, formats.COLD)
        yield from note(cache, f"uses the feature {formats.COLD!r} from now on")
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
    raised = with_feature(
        msgspec.structs.replace(topology, format=max(topology.format, formats.FORMAT)), formats.SETTINGS
    )
    return raised if topology.engine else msgspec.structs.replace(raised, engine=new_word(), created=now_ms)
