"""trim, purge and cancel_tag: removes tasks in bulk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from shardq.calls.answers import body
from shardq.calls.request import Call
from shardq.layout.keys import ShardKeys

CHUNK = 500
"""Tasks removed at a time, in some 2 ms of the server."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    removed: int
    """CHUNK means that there may be more."""
    early: int
    """Those of them that were too many, and not too old."""


def trim(keys: ShardKeys, epoch: int, *, age_ms: int, keep: int, now_us: str = "") -> Call[Trimmed]:
    """Removes dead tasks that are too old or too many."""
    return Call.of("trim", keys, [epoch, now_us, age_ms, keep, CHUNK], lambda answer: Trimmed(*map(int, body(answer))))


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


def purge(
    keys: ShardKeys, epoch: int, topic: str, *, scope: Literal["topic", "all"], go_on: Purged, now_us: str = ""
) -> Call[Purged]:
    return Call.of("purge", keys, [epoch, now_us, topic, scope, go_on.due, go_on.dead, CHUNK], _purged, topics=(topic,))


def _purged(answer: list[Any]) -> Purged:
    removed, left, due, dead = body(answer)
    return Purged(removed, left, due.decode(), dead.decode())


@dataclass(frozen=True, slots=True)
class TagPage:
    """A page of records that were looked at for a tag."""

    cursor: str
    """The cursor of the next page; '0' at the end."""
    looked_at: int
    bytes: int
    """The bytes of the records, which the server read and did not send."""
    cancelled: list[str]
    running: list[str]


def cancel_tag(keys: ShardKeys, epoch: int, tag: str, cursor: str, *, count: int, now_us: str = "") -> Call[TagPage]:
    return Call.of("cancel_tag", keys, [epoch, now_us, cursor, tag, count], _tag_page)


def _tag_page(answer: list[Any]) -> TagPage:
    cursor, looked_at, size, cancelled, running = body(answer)
    return TagPage(cursor.decode(), looked_at, size, [id.decode() for id in cancelled], [id.decode() for id in running])
