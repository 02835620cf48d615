"""Plain reads of where ids and records of a shard are, and restore: a lost record gets a place again. For ``shardq
doctor``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardq.calls.answers import body
from shardq.calls.request import Call, Command
from shardq.layout.keys import ShardKeys
from shardq.model.ids import topic_of


def some_records(keys: ShardKeys, count: int) -> Command[list[str]]:
    """Ids that have a record, drawn at random; all of them if they are no more than ``count``."""
    return Command(keys.slot, ("HRANDFIELD", keys.task, count), _texts)


def some_members(keys: ShardKeys, key: str, count: int) -> Command[list[str]]:
    """Ids of a sorted set of the shard, likewise."""
    return Command(keys.slot, ("ZRANDMEMBER", key, count), _texts)


def has_records(keys: ShardKeys, ids: Sequence[str]) -> list[Command[bool]]:
    return [Command(keys.slot, ("HSTRLEN", keys.task, id), bool) for id in ids]


def are_members(keys: ShardKeys, key: str, ids: Sequence[str]) -> Command[list[bool]]:
    """Tells for each id if it is in this sorted set of the shard."""
    return Command(keys.slot, ("ZMSCORE", key, *ids), lambda scores: [score is not None for score in scores])


def entries(keys: ShardKeys, topic: str, id: str) -> Command[int]:
    """The entries of an id in its ready list; those of ghosts count."""
    return Command(keys.slot, ("LPOS", keys.ready(topic), id, "COUNT", 0), len)


def length(keys: ShardKeys, topic: str) -> Command[int]:
    """The length of a ready list."""
    return Command(keys.slot, ("LLEN", keys.ready(topic)), int)


def ghosts(keys: ShardKeys, ids: Sequence[str]) -> Command[list[int]]:
    """Counts the ghosts of each id."""
    return Command(keys.slot, ("HMGET", keys.ghost, *ids), lambda counts: [int(count or 0) for count in counts])


def restore(keys: ShardKeys, epoch: int, id: str, *, now_us: str = "") -> Call[bool]:
    """Schedules an id for now that has a record and no place. True if it had none."""
    return Call.of(
        "restore", keys, [epoch, now_us, keys.bell, id], lambda answer: body(answer)[0] == 1, topics=(topic_of(id),)
    )


def _texts(ids: list[Any]) -> list[str]:
    return [id.decode() for id in ids]
