"""dispatch and forward, and what tells that a dispatch would find nothing; append, for lists and streams of others.

Used by the dispatcher, and where tasks go to other servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from shardq.core.calls.consume import KeyWaits, key_waits_of
from shardq.core.calls.request import NOW, Call, Command, Epoch, Word, body, by_name
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.slots import slot_of
from shardq.core.layout.topology import Stamp
from shardq.core.layout.words import number_of
from shardq.core.scripts import Script

MAX_BATCH = 1000
"""Lua's stack holds some 8,000 values, and a call should not hold the server for much over a millisecond."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The result of one dispatch, and when the next one is wanted."""

    moved: int
    reaped: int
    buried: int
    oldest_ms: int  # lateness of the oldest task without a key that was moved; -1 when none was
    newest_ms: int
    next_us: int | None  # the next time at which there is something to do; None: not before a wake-up
    now_us: int
    by_topic: tuple[tuple[str, int], ...]  # topics of which tasks were moved, and how many
    lacking: tuple[str, ...]  # topics with due tasks whose ready lists were not given
    unheard: tuple[str, ...]
    """Topics of which tasks were moved, where all processes that were drawn are gone, and more are registered."""
    routed: tuple[str, ...]  # routed topics whose ready lists are not empty now, by whichever call they were filled
    waits: KeyWaits = ()
    """How long the tasks with a key that were moved had waited."""

    @property
    def without_key(self) -> list[tuple[str, int]]:
        """``by_topic``, of tasks without a key."""
        keyed = Counter[str]()
        for topic, _, tasks in self.waits:
            keyed[topic] += tasks
        return [(topic, tasks - keyed[topic]) for topic, tasks in self.by_topic if tasks > keyed[topic]]


def dispatch(
    keys: ShardKeys,
    epoch: Epoch,
    topics: Sequence[str],
    *,
    limit: int,
    max_attempts: int,
    paused: Collection[str] = (),
    routed: Collection[str] = (),
    caller: str = "",
) -> Call[Dispatched]:
    """``routed``: topics whose tasks go on to a list; they wake no consumer. ``caller`` names who asks, and changes
    whenever an answer may have been lost: what an earlier call moves after this one rings the bell.
    """
    marked = [f"!{topic}" if topic in paused else f">{topic}" if topic in routed else topic for topic in topics]

    def again() -> Call[Dispatched]:
        return dispatch(
            keys,
            epoch,
            topics,
            limit=limit,
            max_attempts=max_attempts,
            paused=paused,
            routed=routed,
            caller=f"{caller}+",
        )

    return Call.of(
        "dispatch",
        keys,
        [*(epoch, NOW, limit, max_attempts, keys.wake("")), *((keys.bell, caller) if routed else ("", "")), *marked],
        _dispatched,
        topics=topics,
        resend=again if routed else None,
    )


def _dispatched(answer: list[Any]) -> Dispatched:
    told = by_name(answer)
    by_topic, next_ms = told["by_topic"], told["next_ms"]
    return Dispatched(
        moved=told["moved"],
        reaped=told["reaped"],
        buried=told["buried"],
        oldest_ms=told["oldest"],
        newest_ms=told["newest"],
        next_us=number_of(next_ms) * 1000 if next_ms else None,
        now_us=int(told["now_us"]),
        by_topic=tuple(zip(map(bytes.decode, by_topic[0::2]), by_topic[1::2], strict=True)),
        lacking=tuple(map(bytes.decode, told["lacking"])),
        unheard=tuple(map(bytes.decode, told["unheard"])),
        routed=tuple(map(bytes.decode, told["routed"])),
        waits=key_waits_of(told.get("waits", ())),
    )


def next_step(keys: ShardKeys) -> Command[tuple[Stamp, int | None]]:
    """The shard's epoch (0 where it is not open), and the instant (µs) at which its poller is wanted, as the last
    dispatch or ring left it; None: not before a wake-up.
    """
    return Command(keys.slot, ("HMGET", keys.meta, "epoch", "wake_at"), _next_step)


def _next_step(answer: list[bytes | None]) -> tuple[Stamp, int | None]:
    epoch, wake_at = answer
    return Stamp.of(epoch), number_of(wake_at) * 1000 if wake_at else None


def has_lengths(keys: ShardKeys) -> Command[int]:
    """More than 0 if the shard has leases or dedup windows, whose ends ring no bell."""
    return Command(keys.slot, ("EXISTS", keys.leased, keys.seen), int)


def clock_us(keys: ShardKeys) -> Command[int]:
    """The clock of the shard's master."""
    return Command(keys.slot, ("TIME",), lambda answer: int(answer[0]) * 1_000_000 + int(answer[1]))


@dataclass(frozen=True, slots=True)
class Forwarded:
    sent: int
    left: int  # the number left in the ready list


def forward(
    keys: ShardKeys,
    epoch: Epoch,
    topic: str,
    *,
    to: str,
    side: Literal["left", "right", "stream"],
    limit: int,
    maxlen: int | None = None,
) -> Call[Forwarded]:
    """Only for a list or a stream on the same server, and on a cluster only for one in the same slot. ``maxlen``: about
    how many entries the stream keeps.
    """
    return Call.of(
        "forward",
        keys,
        [epoch, NOW, keys.bell, limit, side, "" if maxlen is None else maxlen],
        lambda answer: Forwarded(*body(answer)),
        topics=(topic,),
        also=(to,),
    )


Way = Literal["right", "left", "stream"]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One task as others get it."""

    id: str
    payload: bytes
    headers: Mapping[str, str]


_TEXT = """\
for i = 2, #ARGV, 3 do
  local entry = {'*', 'id', ARGV[i], 'payload', ARGV[i + 1]}
  if ARGV[i + 2] ~= '' then
    entry[6], entry[7] = 'headers', ARGV[i + 2]
  end
  -- the last one trims, so that a stream that takes no more entries loses none
  if ARGV[1] ~= '' and i + 2 == #ARGV then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], unpack(entry))
  else
    redis.call('XADD', KEYS[1], unpack(entry))
  end
end
return (#ARGV - 1) / 3
"""
_ENTRIES = Script.of("append", _TEXT)  # not in lua/, which is the contract of our own keys: it touches none of them


def append(key: str, way: Way, entries: Sequence[Entry], maxlen: int | None = None) -> Command[int]:
    """Appends entries to a key, all of them or none. After a lost answer it is sent again: at least once.

    An entry of a list is the payload. One of a stream has the fields ``id``, ``payload`` and, of a task with headers,
    ``headers``, a JSON object: as forward.lua writes them. ``maxlen``: about how many entries the stream keeps.
    """
    slot = slot_of(key)
    if way == "stream":
        words: list[Word] = ["" if maxlen is None else maxlen]
        words += [word for entry in entries for word in (entry.id, entry.payload, _headers(entry))]
        return Call(slot=slot, words=words, decode=int, script=_ENTRIES, keys=(key,))
    verb = "LPUSH" if way == "left" else "RPUSH"
    return Command(slot, (verb, key, *(entry.payload for entry in entries)), int)


def _headers(entry: Entry) -> bytes:
    return msgspec.json.encode(entry.headers) if entry.headers else b""
