"""page, page_ready, page_lane and forecast: ids by state or key, and counts of what falls due; trim, purge and
cancel_tag: removal in bulk.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shardq.core.calls.request import NOW, Call, Epoch, body, by_name
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.words import id_of, number_of

LOOK = 1000  # the most ids that one call looks at, in about half a millisecond of the server

SortedState = Literal["scheduled", "held", "leased", "dead"]
"""A state whose tasks have an instant, by which they are in order."""

Part = Literal[SortedState, "keyed"]
"""Scheduled tasks with a key are in an order of their own."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the order by instant and id."""

    begin_ms: str = "-inf"
    after: str = ""  # the id of begin_ms after which it begins; empty: it begins with the first one
    end_ms: str = "+inf"  # it ends before it comes to this instant
    newest: bool = False  # true for the order from the latest instant to the earliest, and so from +inf to -inf


@dataclass(frozen=True, slots=True)
class IdPage:
    """A part of the ids of one state in a shard."""

    now_us: int
    whole: bool  # true if nothing follows
    looked_at: int
    last: tuple[int, str]  # instant in ms and id of the last one looked at
    ids: list[tuple[int, str]]
    """Instant in ms and id of those that match. Of leased tasks it is by the steady clock of the shard."""


def page(
    keys: ShardKeys,
    epoch: Epoch,
    state: Part,
    span: Span,
    *,
    topic: str | None = None,
    holder: str | None = None,
    failed: bool = False,
    key: str | None = None,
    count: int,
    look: int = LOOK,
) -> Call[IdPage]:
    return Call.of(
        "page",
        keys,
        [
            *(epoch, NOW, state, span.begin_ms, span.after, span.end_ms),
            *("" if topic is None else f"={topic}", holder or "", count, look, "newest" if span.newest else ""),
            *("failed" if failed else "", key or ""),
        ],
        _id_page,
    )


def _id_page(answer: list[Any]) -> IdPage:
    told = by_name(answer)
    items = told["ids"]
    return IdPage(
        now_us=int(told["now_us"]),
        whole=bool(told["whole"]),
        looked_at=told["looked_at"],
        last=(number_of(told["last_ms"]), id_of(told["last"])),
        ids=[(number_of(at), id_of(id)) for id, at in zip(items[::2], items[1::2], strict=True)],
    )


@dataclass(frozen=True, slots=True)
class ReadyPage:
    """A part of a ready list."""

    whole: bool  # true if nothing follows
    looked_at: int
    last: int | None  # the place of the last one looked at; None: there was none
    ids: list[tuple[int, str]]  # place and id of those that are ready
    haunted: Set[str] = frozenset()  # those that have ghosts: they may stand in the list once more


def page_ready(keys: ShardKeys, epoch: Epoch, topic: str, after: int | None, *, count: int) -> Call[ReadyPage]:
    """Reads what follows the place ``after``; None: from the beginning."""

    def decode(answer: list[Any]) -> ReadyPage:
        whole, looked_at, last, items, haunted = body(answer)
        ids = [(int(place), id_of(id)) for place, id in zip(items[::2], items[1::2], strict=True)]
        return ReadyPage(bool(whole), looked_at, int(last) if last else None, ids, set(map(id_of, haunted)))

    return Call.of(
        "page_ready", keys, [epoch, NOW, topic, "" if after is None else after, count], decode, topics=(topic,)
    )


LaneState = Literal["leased", "ready", "scheduled"]
"""The states in the order in which the tasks of a lane are listed. Those that are held are scheduled ones."""


@dataclass(frozen=True, slots=True)
class LanePage:
    """A part of the tasks of a lane."""

    whole: bool  # true if nothing follows
    tasks: list[tuple[LaneState, str]]
    """The ids of those that are leased, then ready; then the members of ``keys`` of those that wait."""


def page_lane(
    keys: ShardKeys, epoch: Epoch, lane: str, begin: LaneState = "leased", after: str = "", *, count: int
) -> Call[LanePage]:
    """Reads what follows the task ``after`` of the state with which the page begins; "": all of that state, too."""

    def decode(answer: list[Any]) -> LanePage:
        whole, *states = body(answer)
        found = zip(get_args(LaneState), states, strict=True)
        return LanePage(bool(whole), [(state, id_of(word)) for state, words in found for word in words])

    return Call.of("page_lane", keys, [epoch, NOW, lane, begin, after, count], decode)


@dataclass(frozen=True, slots=True)
class DueCounts:
    """The scheduled tasks of one shard, counted by the time at which they fall due."""

    now_us: int
    begin_ms: int  # the instant at which the first step begins
    overdue: int
    later: int
    steps: Sequence[int]


def forecast(
    keys: ShardKeys, epoch: Epoch, *, begin_ms: int | None = None, step_ms: int, steps: int
) -> Call[DueCounts]:
    """Counts from ``begin_ms``; None: from the last multiple of a step that has begun."""

    def decode(answer: list[Any]) -> DueCounts:
        now, begin, overdue, later, counts = body(answer)
        return DueCounts(int(now), int(begin), overdue, later, counts)

    return Call.of(
        "forecast", keys, [epoch, NOW, "" if begin_ms is None else begin_ms, step_ms, steps], decode
    ).briefly()


CHUNK = 500  # tasks removed at a time, in some 2 ms of the server


@dataclass(frozen=True, slots=True)
class Trimmed:
    removed: int  # CHUNK means that there may be more
    early: int  # those of them that were too many, and not too old


def trim(keys: ShardKeys, epoch: Epoch, *, age_ms: int, keep: int) -> Call[Trimmed]:
    """Removes dead tasks that are too old or too many."""
    return Call.of("trim", keys, [epoch, NOW, age_ms, keep, CHUNK], lambda answer: Trimmed(*map(int, body(answer))))


@dataclass(frozen=True, slots=True)
class Purged:
    removed: int
    left: int
    due: str
    dead: str

    @property
    def done(self) -> bool:
        return not self.left and self.due == self.dead == "end"


START = Purged(0, 0, "0", "0")


def purge(keys: ShardKeys, epoch: Epoch, topic: str, *, scope: Literal["topic", "all"], go_on: Purged) -> Call[Purged]:
    return Call.of(
        "purge", keys, [epoch, NOW, keys.bell, topic, scope, go_on.due, go_on.dead, CHUNK], _purged, topics=(topic,)
    )


def _purged(answer: list[Any]) -> Purged:
    removed, left, due, dead = body(answer)
    return Purged(removed, left, due.decode(), dead.decode())


@dataclass(frozen=True, slots=True)
class TagPage:
    """A page of records that were looked at for a tag."""

    cursor: str  # the cursor of the next page; '0' at the end
    looked_at: int
    bytes: int  # the bytes of the records, which the server read and did not send
    cancelled: list[str]
    running: list[str]


def cancel_tag(keys: ShardKeys, epoch: Epoch, tag: str, cursor: str, *, count: int) -> Call[TagPage]:
    return Call.of("cancel_tag", keys, [epoch, NOW, keys.bell, cursor, tag, count], _tag_page)


def _tag_page(answer: list[Any]) -> TagPage:
    cursor, looked_at, size, cancelled, running = body(answer)
    return TagPage(cursor.decode(), looked_at, size, list(map(id_of, cancelled)), list(map(id_of, running)))
