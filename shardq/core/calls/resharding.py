"""Moving tasks to the shard they belong to under another number of shards: reserve, take, put and clear; remember and
forget for the ends of dedup windows; stock, swept and unmark for what is to be known at the end.

    target: reserve ──▶ source: take ──▶ target: put ──▶ source: clear

Every step can be repeated by any process, and one frozen between any two of them does no harm: a number is used by
one attempt only; ``take`` is the commit and keeps the task in the source's ``moved`` until ``put`` has used up the mark
that ``reserve`` left; and a ``take`` under an old topology is refused.

Nor does a failover, where there are replicas: what was reserved is on them before it is taken, and what was put before
it is cleared (``seal``, and WAIT). So a mark that is gone was used up, and a ``put`` that was lost left it behind, for
the process that finds the moving task in ``moved``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

from shardq.core.calls.request import NOW, Call, Command, Epoch, Word, body, nothing
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.layout.words import id_of, number_of, shown_id
from shardq.errors import ServerFault

SCAN = 4000  # members read in one trip, in about a millisecond

PAGE = 4000  # members of a sorted set read in one trip, in a fifth of a millisecond

BATCH = 250  # tasks moved by one script call: about a millisecond of each server

BATCH_BYTES = 1 << 20

MOST_SEEN = 1000  # ends of dedup windows in one script call


_PARCEL = re.compile(rb"[^|]*\|(\d{1,4})\|(?:due|first:\d{1,14}|dead)\|([^|]*)\|(\d{1,7})\|(\d{1,7})\|")
"""The beginning of the stored text, as ``put`` reads it: target, instant, and the lengths of lease entry and reason."""


@dataclass(frozen=True, slots=True)
class MovingTask:
    """One task that is moving."""

    id: str
    data: bytes  # the stored text: 'number|target|…'

    @property
    def is_readable(self) -> bool:
        """False for what another program has stored, or another version: it stays where it is."""
        found = _PARCEL.match(self.data)
        if found is None or int(found[1]) >= MAX_SHARDS or found.end() + int(found[3]) + int(found[4]) > len(self.data):
            return False
        try:
            return not isnan(float(found[2]))
        except ValueError:
            return False

    @property
    def number(self) -> str:
        return id_of(self.data.split(b"|", 1)[0])

    @property
    def run(self) -> str:
        """The process of its target's server, where the end of that may have lost the mark; empty for others."""
        return self.number.partition("!")[2]

    @property
    def target(self) -> int:
        return int(self.data.split(b"|", 2)[1])

    @property
    def receipt(self) -> MovingTask:
        """The same without the record: what is needed to clear it."""
        return replace(self, data=b"|".join([*self.data.split(b"|", 2)[:2], b""]))


def loads(moving_tasks: Iterable[MovingTask]) -> list[tuple[int, list[MovingTask]]]:
    """Moving tasks by the shard they go to, in parts that one ``put`` may carry."""
    parts: list[tuple[int, list[MovingTask]]] = []
    last: dict[int, list[MovingTask]] = {}
    sizes: dict[int, int] = {}
    for moving_task in moving_tasks:
        target = moving_task.target
        size = sizes.get(target, BATCH_BYTES) + len(moving_task.data)
        if size > BATCH_BYTES or len(last[target]) == BATCH:
            last[target], size = [], len(moving_task.data)
            parts.append((target, last[target]))
        last[target].append(moving_task)
        sizes[target] = size
    return parts


def reserve(keys: ShardKeys, epoch: Epoch, number: str, ids: Sequence[str]) -> Call[None]:
    return Call.of("reserve", keys, [epoch, NOW, number, *ids], nothing)


def take(keys: ShardKeys, epoch: Epoch, number: str, target: int, ids: Sequence[str]) -> Call[list[MovingTask]]:
    """Moving tasks whose answer was lost are found in ``moved``."""
    return Call.of("take", keys, [epoch, NOW, number, target, *ids], lambda answer: _moving(body(answer)))


def _moving(flat: Iterable[bytes]) -> list[MovingTask]:
    fields = iter(flat)
    return [MovingTask(id_of(id), data) for id, data in zip(fields, fields, strict=True)]


def put(keys: ShardKeys, epoch: Epoch, moving_tasks: Sequence[MovingTask]) -> Call[None]:
    words: list[Word] = [epoch, NOW, keys.bell]
    for moving_task in moving_tasks:
        words += (moving_task.id, moving_task.data)
    return Call.of("put", keys, words, nothing)


def clear(keys: ShardKeys, epoch: Epoch, moving_tasks: Sequence[MovingTask]) -> Call[None]:
    words: list[Word] = [epoch, NOW]
    for moving_task in moving_tasks:
        words += (moving_task.id, moving_task.number)
    return Call.of("clear", keys, words, nothing)


def swept(keys: ShardKeys, epoch: Epoch, since: int) -> Call[None]:
    # not sent again: a server that went away meanwhile may have come back with tasks that were moved away
    return Call.of("swept", keys, [epoch, NOW, since], nothing, retry_for_s=0)


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A page of the ids whose records are in a shard."""

    cursor: str  # the cursor of the next page; '0' at the end
    bytes: int  # the bytes of the records, which the server read and did not send
    ids: list[str]


def stock(keys: ShardKeys, epoch: Epoch, cursor: str, *, count: int) -> Call[RecordPage]:
    def decode(answer: list[Any]) -> RecordPage:
        cursor, size, ids = body(answer)
        return RecordPage(cursor.decode(), size, list(map(id_of, ids)))

    return Call.of("stock", keys, [epoch, NOW, cursor, count], decode)


def remember(keys: ShardKeys, epoch: Epoch, ends: Mapping[str, str], *, ahead_ms: int) -> Call[None]:
    """``ends``: id → end of its dedup window in ms. The later end of a window counts. ``ahead_ms``: of the shard they
    come from."""
    return Call.of("remember", keys, [epoch, NOW, ahead_ms, *_seen_words(ends)], nothing)


def forget(keys: ShardKeys, epoch: Epoch, ends: Mapping[str, str]) -> Call[None]:
    """Forgets windows that end at that time, or earlier."""
    return Call.of("forget", keys, [epoch, NOW, *_seen_words(ends)], nothing)


def ahead(keys: ShardKeys) -> Command[int]:
    """How far the steady clock of a shard, by which dedup windows end, is before its server's, in ms."""
    return Command(keys.slot, ("HGET", keys.meta, "ahead"), number_of)


def _seen_words(ends: Mapping[str, str]) -> list[Word]:
    return [word for id, end in ends.items() for word in (end, id)]


def unmark(keys: ShardKeys, epoch: Epoch) -> Call[None]:
    return Call.of("unmark", keys, [epoch, NOW], nothing)


# ---- plain commands: looking


def scan(keys: ShardKeys, key: str, cursor: str, *, count: int) -> Command[tuple[str, dict[str, str]]]:
    """A part of a ZSET: member → score. What is there during the whole scan is met at least once."""

    def decode(answer: list[Any]) -> tuple[str, dict[str, str]]:
        items = iter(answer[1])
        return answer[0].decode(), {id_of(member): score.decode() for member, score in zip(items, items, strict=True)}

    return Command(keys.slot, ("ZSCAN", key, cursor, "COUNT", count), decode)


def latest(keys: ShardKeys, key: str, start: int, *, count: int) -> Command[list[str]]:
    """Members of a ZSET from the highest score down, after the first ``start``."""
    return Command(
        keys.slot,
        ("ZRANGE", key, start, start + count - 1, "REV"),
        lambda answer: list(map(id_of, answer)),
    )


def scan_moved(keys: ShardKeys, cursor: str, *, count: int) -> Command[tuple[str, list[MovingTask]]]:
    """A part of those that can be read."""

    def decode(answer: list[Any]) -> tuple[str, list[MovingTask]]:
        return answer[0].decode(), [moving_task for moving_task in _moving(answer[1]) if moving_task.is_readable]

    return Command(keys.slot, ("HSCAN", keys.moved, cursor, "COUNT", count), decode)


def moving_task_of(keys: ShardKeys, id: str) -> Command[MovingTask | None]:
    def decode(data: bytes | None) -> MovingTask | None:
        found = None if data is None else MovingTask(id, data)
        if found is not None and not found.is_readable:
            raise ServerFault(
                f"{shown_id(id)!r} is on its way to another shard in a form that can't be read: another program, or a "
                f"later version of shardq, has written that; look at its field in {keys.moved}; upgrade, or remove it"
            )
        return found

    return Command(keys.slot, ("HGET", keys.moved, id), decode)


def unreadable(keys: ShardKeys) -> Command[list[str]]:
    """The ids of tasks that are moving and can't be read, among the first ones."""

    def decode(answer: list[Any]) -> list[str]:
        return [shown_id(moving_task.id) for moving_task in _moving(answer[1]) if not moving_task.is_readable]

    return Command(keys.slot, ("HSCAN", keys.moved, "0", "COUNT", SCAN), decode)


def moving_tasks(keys: ShardKeys) -> Command[int]:
    """The number of tasks that are moving out of this shard."""
    return Command(keys.slot, ("HLEN", keys.moved), int)


def moving_ids(keys: ShardKeys) -> Command[list[str]]:
    """The ids of all of them."""
    return Command(keys.slot, ("HKEYS", keys.moved), lambda found: list(map(id_of, found)))


def meta_fields(keys: ShardKeys, *fields: str) -> Command[list[bytes | None]]:
    return Command(keys.slot, ("HMGET", keys.meta, *fields), list)


def records(keys: ShardKeys) -> Command[int]:
    """The number of tasks in this shard, in whatever state."""
    return Command(keys.slot, ("HLEN", keys.task), int)


def record_bytes(keys: ShardKeys) -> Command[int]:
    """The bytes of the whole hash, estimated from some of its records; 0 when it is empty."""
    return Command(keys.slot, ("MEMORY", "USAGE", keys.task, "SAMPLES", 50), lambda bytes: int(bytes or 0))
