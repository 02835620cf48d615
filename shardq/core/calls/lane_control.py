"""lanes, close, open_lanes and hold: what is said to a shard about the lanes of its keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from shardq.core.calls.request import NOW, Call, Command, Epoch, Word, body, nothing
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import behind
from shardq.core.layout.words import id_of, text_of

SCAN = 5000
"""The gates of a look: a millisecond or two of the server."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A lane of which nothing is given any more in a shard that it leaves."""

    lane: str
    out: int  # tasks that are ready or leased
    waits: bool
    turn: str  # the instants of its last turn, and before which it is held, in ms, or ""
    held: str


class Looked(NamedTuple):
    """A page of the lanes of a shard."""

    lanes: list[str]
    mended: int  # places that were freed
    lacking: int  # tasks of the shard that wait, and that their lanes don't know


def lanes(keys: ShardKeys, epoch: Epoch, start: str, *, count: int) -> Call[Looked]:
    """A page of lanes, from these bytes on. Sets their alarms anew."""

    def decode(answer: list[Any]) -> Looked:
        mended, found, lacking = body(answer)
        return Looked(list(map(id_of, found)), mended, lacking)

    return Call.of("lanes", keys, [epoch, NOW, keys.bell, start, count], decode)


FAR_MS = 4e15
"""Tasks that wait in a lane are in ``due`` at their due time plus this: no clock comes there."""

LATE_MS = 50
"""Of a key with a rate, as many tasks as that gives in this time may be ready and not taken, and one at least."""


def waiting(keys: ShardKeys, since: float, skip: int, count: int) -> Command[list[tuple[str, float]]]:
    """Tasks that wait in lanes, and their scores in ``due``: from this score on, without the first few of these."""

    def decode(answer: list[Any]) -> list[tuple[str, float]]:
        are_pairs = bool(answer) and isinstance(answer[0], list)  # under RESP3
        words = iter([word for pair in answer for word in pair] if are_pairs else answer)
        return [(id_of(id), float(score)) for id, score in zip(words, words, strict=True)]

    words = ("ZRANGEBYSCORE", keys.due, f"{since:.0f}", "+inf", "WITHSCORES", "LIMIT", skip, count)
    return Command(keys.slot, words, decode)


def close(keys: ShardKeys, epoch: Epoch, some: Sequence[str]) -> Call[list[Closed]]:
    """Closes lanes. Returns what is there of them."""

    def decode(answer: list[Any]) -> list[Closed]:
        words = iter(body(answer))
        return [
            Closed(id_of(lane), out, waits == 1, turn.decode(), held.decode())
            for lane, out, waits, turn, held in zip(words, words, words, words, words, strict=True)
        ]

    return Call.of("close", keys, [epoch, NOW, *some], decode)


def open_lanes(keys: ShardKeys, epoch: Epoch, some: Iterable[Closed]) -> Call[None]:
    words = [word for each in some for word in (each.lane, each.turn, each.held)]
    return Call.of("open_lanes", keys, [epoch, NOW, keys.bell, *words], nothing)


def first_of(keys: ShardKeys, lane: str, after: str, *, count: int) -> Command[list[str]]:
    """The first members of ``keys`` of a lane, behind one; "" for the first of all."""
    low = f"({after}" if after else f"[{lane}"
    words = ("ZRANGEBYLEX", keys.keys, low, f"({behind(lane)}", "LIMIT", 0, count)
    return Command(keys.slot, words, lambda found: list(map(id_of, found)))


def id_of_entry(entry: str, lane: str) -> str:
    """The id of such a member: behind the lane it has the due time in 15 digits, and a slash."""
    return lane + entry[len(lane) + 16 :]


Gate = Literal["closed", "shut"]
"""A lane that moves is ``closed`` in the shard that it leaves, and ``shut`` where it has not arrived yet."""


def gates(keys: ShardKeys, what: Gate, since: int, cursor: str) -> Command[tuple[str, list[str]]]:
    """The next cursor, "0" at the end, and some lanes that have this gate in the change since that epoch."""
    word = f"{what}:{since}".encode()

    def decode(answer: list[Any]) -> tuple[str, list[str]]:
        fields = iter(answer[1])
        return text_of(answer[0]), [id_of(lane) for lane, gate in zip(fields, fields, strict=True) if gate == word]

    return Command(keys.slot, ("HSCAN", keys.gates, cursor, "COUNT", SCAN), decode)


Place = Literal["", "new", "old"]
"""The shard of a lane that does not move; while it moves the one where it belongs, and one that it leaves."""


def hold(keys: ShardKeys, epoch: Epoch, lane: str, until: Word, place: Place = "") -> Call[None]:
    """Has a lane give nothing until this due word; "" lets it go on."""
    return Call.of("hold", keys, [epoch, NOW, keys.bell, lane, until, place], nothing)


def shut(keys: ShardKeys, epoch: Epoch, lane: str) -> Call[bool]:
    """Has a lane without tasks come here, with the hold that it has elsewhere. Returns True once it has."""
    words: list[Word] = [epoch, NOW, keys.bell, lane, "shut", "new"]
    return Call.of("hold", keys, words, lambda answer: body(answer)[0] == 1)


def lanes_on_hold(keys: ShardKeys, cursor: str) -> Command[tuple[str, list[str]]]:
    """The next cursor, "0" at the end, and some lanes that are or were on hold."""
    words = ("HSCAN", keys.holds, cursor, "COUNT", SCAN)
    return Command(keys.slot, words, lambda answer: (text_of(answer[0]), list(map(id_of, answer[1][::2]))))


@dataclass(frozen=True, slots=True)
class Tallied:
    """A lane in one shard, counted."""

    lane: str
    scheduled: int
    held: int
    ready: int
    leased: int
    oldest_ms: int | None  # due time of the oldest held task
    retry_ms: int  # the instant of the retry that it waits for; 0 without one
    turn_ms: float  # the instants of the last turn of its rate, and before which it is on hold; 0 if never
    held_ms: float
    alarm_ms: float | None  # when it gives its next by itself, if no rate or hold is longer; None: it does not


@dataclass(frozen=True, slots=True)
class Tally:
    """Some lanes of a topic in one shard, the largest ones first."""

    now_ms: int
    is_whole: bool  # True if each lane was looked at
    lanes: list[Tallied]


def tally(keys: ShardKeys, epoch: Epoch, topic: str, *, count: int) -> Call[Tally]:
    """Counts what the largest lanes of a topic have, so many at most."""

    def tallied(
        lane: bytes,
        scheduled: int,
        held: int,
        ready: int,
        leased: int,
        oldest: bytes,
        retry: bytes,
        turn: bytes,
        until: bytes,
        alarm: bytes,
    ) -> Tallied:
        oldest_ms = int(oldest) if oldest else None
        retry_ms, turn_ms, held_ms = int(retry or 0), float(turn or 0), float(until or 0)
        alarm_ms = float(alarm) if alarm else None
        return Tallied(id_of(lane), scheduled, held, ready, leased, oldest_ms, retry_ms, turn_ms, held_ms, alarm_ms)

    def decode(answer: list[Any]) -> Tally:
        now, is_whole, flat = body(answer)
        words = iter(flat)
        return Tally(int(now), is_whole == 1, [tallied(*each) for each in zip(*[words] * 10, strict=True)])

    return Call.of("tally", keys, [epoch, NOW, topic, count], decode)


def oldest_of(keys: ShardKeys, lane: str) -> Command[int | None]:
    """The due time, in ms, of the first task that waits in a lane, without those that were put at its front."""
    words = ("ZRANGEBYLEX", keys.keys, f"[{lane}{1:015d}", f"({behind(lane)}", "LIMIT", 0, 1)
    return Command(keys.slot, words, lambda found: int(found[0][len(lane.encode()) :][:15]) if found else None)
