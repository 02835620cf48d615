"""Who serves which shard, topic and route, by what the members of the fleet report. Pure. Called by health, metrics
and top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shardq.core.fleet.lateness import OTHERS
from shardq.core.fleet.member import Member
from shardq.core.layout.topology import Route

NO_DISPATCHER = (
    "no dispatcher runs, so nobody moves tasks when they are due: call engine.start() in a process that stays up, or "
    "start `shardq run`"
)


def is_told(members: Iterable[Member]) -> bool:
    """True if the report of each could be read: one of another version may serve anything."""
    return all(member.host for member in members)


def workers(members: Iterable[Member]) -> list[Member]:
    """The workers that live."""
    return [member for member in members if member.kind == "worker"]


def serves(worker: Member, topic: str) -> bool:
    """True if the worker says that it serves the topic, or may."""
    return topic in worker.topics or OTHERS in worker.topics


def knows(worker: Member, topic: str, task: str) -> bool:
    """True if the worker serves the topic, and says that it knows calls of the named task there, or may."""
    if not serves(worker, topic) or any((call.topic, call.task) == (topic, task) for call in worker.unknown):
        return False
    return task in worker.tasks or OTHERS in worker.tasks


def unforwarded(members: Sequence[Member], routes: Mapping[str, Route]) -> list[str]:
    """The topics of these routes to sinks that no dispatcher says it forwards. None of them if one forwards more than
    it names, or its report can't be read.
    """
    serving = dispatchers(members)
    if not is_told(serving) or any(len(member.sinks) < member.forwards for member in serving):
        return []
    forwarded = {sink.topic for member in serving for sink in member.sinks}
    return sorted(topic for topic, route in routes.items() if not route.is_here and topic not in forwarded)


def dispatchers(members: Iterable[Member]) -> list[Member]:
    """The dispatchers that live."""
    return [member for member in members if member.kind == "dispatcher"]


def servers(members: Iterable[Member]) -> dict[int, Member]:
    """Shard → the dispatcher that says it serves it.

    >>> servers([Member(kind="dispatcher", name="a", host="h1", shards=(0, 2))])[2].host
    'h1'
    """
    return {shard: member for member in dispatchers(members) for shard in member.shards}


def unserved(members: Sequence[Member], shards: Iterable[int]) -> list[int]:
    """The shards that no dispatcher says it serves. None of them if a dispatcher's report can't be read, as one of
    another version: it may serve them.

    >>> unserved([Member(kind="dispatcher", name="a", host="h1", shards=(0, 2))], range(4))
    [1, 3]
    """
    if not is_told(dispatchers(members)):
        return []
    served = servers(members)
    return [shard for shard in shards if shard not in served]
