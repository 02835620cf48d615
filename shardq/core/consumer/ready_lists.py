"""Finds the ready lists that have an entry, where most have none."""

from __future__ import annotations

from collections.abc import Sequence

from shardq.core.calls import consume
from shardq.core.layout.keys import ShardKeys
from shardq.core.operation import Many, Operation
from shardq.errors import ShardqError

TOGETHER = 100
"""Lists of a shard that are asked for by one command first."""


def not_empty(
    lists: Sequence[tuple[ShardKeys, str]], *, retry_for_s: float | None = None
) -> Operation[list[tuple[ShardKeys, str]]]:
    """Returns those of the lists, each a shard and a topic, that have an entry, or can't be asked."""
    topics: dict[ShardKeys, list[str]] = {}
    for keys, topic in lists:
        topics.setdefault(keys, []).append(topic)
    found: set[tuple[ShardKeys, str]] = set()
    for size in (TOGETHER, 1):
        asked = [(keys, some[at : at + size]) for keys, some in topics.items() for at in range(0, len(some), size)]
        requests = {n: consume.ready_lists(keys, some, retry_for_s=retry_for_s) for n, (keys, some) in enumerate(asked)}
        topics = {}
        for number, count in (yield Many(requests)):
            keys, some = asked[number]
            if isinstance(count, ShardqError) or count == len(some):
                found.update((keys, topic) for topic in some)
            elif count:
                topics.setdefault(keys, []).extend(some)
    return [each for each in lists if each in found]
