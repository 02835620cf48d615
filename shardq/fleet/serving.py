"""Which dispatcher serves which shard, by what the members of the fleet say. Pure. Called by health, metrics, top."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardq.fleet.member import Member

NO_DISPATCHER = (
    "no dispatcher runs, so nobody moves tasks when they are due: call engine.start() in a process that stays up, or "
    "start `shardq run`"
)


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
    if not all(member.host for member in dispatchers(members)):
        return []
    served = servers(members)
    return [shard for shard in shards if shard not in served]
