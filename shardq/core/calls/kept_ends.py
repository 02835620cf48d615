"""What is asked of the ends that a shard keeps: plain commands, as no script reads them."""

from __future__ import annotations

from shardq.core.calls.request import Command
from shardq.core.layout.keys import ShardKeys

SCANNED = 1000
"""The ends that a command reads."""


def of_id(keys: ShardKeys, slot: int, id: str) -> Command[bytes | None]:
    """What a slot has of an id."""
    return Command(keys.slot, ("HGET", keys.ends[slot], id), lambda text: text)


def ring(keys: ShardKeys) -> Command[bytes | None]:
    """The state of the ring."""
    return Command(keys.slot, ("HGET", keys.meta, "ends"), lambda text: text)


def scan(keys: ShardKeys, slot: int, cursor: str) -> Command[tuple[str, list[bytes]]]:
    """Some of the ids and ends of a slot, and the cursor of the next ones; 0 at the end."""
    words = ("HSCAN", keys.ends[slot], cursor, "COUNT", SCANNED)
    return Command(keys.slot, words, lambda answer: (answer[0].decode(), answer[1]))


def remove(keys: ShardKeys) -> Command[int]:
    """Removes all slots."""
    return Command(keys.slot, ("UNLINK", *keys.ends), int)


def forget(keys: ShardKeys) -> Command[int]:
    """Removes the state of the ring."""
    return Command(keys.slot, ("HDEL", keys.meta, "ends"), int)
