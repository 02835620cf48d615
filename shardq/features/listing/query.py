"""The question that a list of tasks answers, the cursor of a page, and dead tasks grouped by their reasons. No I/O.

A cursor holds a place in the order of the tasks, and no server's own cursor: so it means the same after a failover and
with another number of shards. It carries a checksum of itself and of its query.
"""

from __future__ import annotations

import datetime as dt
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict, get_args
from zlib import crc32

import msgspec

from shardq.core.layout.words import UNDECODABLE, id_of, is_foreign, raw
from shardq.core.model.checks import check_key, check_name, check_tag, check_topic, instant_ms
from shardq.core.model.printable import quoted
from shardq.core.model.task import EndedState, State, TaskInfo
from shardq.errors import InvalidOption

Instant = float | dt.datetime
Due = tuple[Instant | None, Instant | None]

STATES: tuple[State, ...] = ("scheduled", "held", "ready", "leased", "dead")
"""In the order in which a task goes through them, and in which they are listed."""

ENDED: tuple[State, ...] = get_args(EndedState)
"""States of tasks that are no more: what is kept of their ends is listed, where it is asked for."""


WAITING: tuple[State, ...] = ("scheduled", "held")
"""The states of tasks that are not given out yet."""

MAX_LIMIT = 1000


class Filter(TypedDict, total=False):
    """The filter that ``tasks`` and all commands on many tasks take, beside a topic. All of it has to match."""

    state: State | None
    due: Due | None
    """From an instant on and before another, each an aware datetime or epoch seconds, or None for an open end."""
    tag: str | None
    key: str | None
    failed: bool
    """True for scheduled tasks with an attempt that failed: those that wait for another one."""
    everything: bool
    """True says that no filter is meant."""


class TaskPage(list[TaskInfo]):
    """A page of tasks, and where the next one begins.

    >>> page = engine.tasks(topic="mail", state="dead", limit=500)
    >>> while page.cursor is not None:
    ...     page = engine.tasks(topic="mail", state="dead", limit=500, cursor=page.cursor)
    """

    def __init__(self, tasks: Iterable[TaskInfo] = (), cursor: str | None = None) -> None:
        super().__init__(tasks)
        self.cursor = cursor
        """To be given with the next call; None at the end. A page may be short, or empty, before the end."""
        self.since: dt.datetime | None = None
        """Of a page of done or cancelled tasks: all ends since then are kept. None if there are none."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A place in the order of the tasks: those behind it are yet to be listed."""

    state: State
    at: int | None = None
    """Instant in ms of the last one; in a ready list its place there. None: at the beginning, or in a lane."""
    id: str = ""
    """Its id; empty in a ready list. In a lane, of a task that waits, its member of the shard's ``keys``."""
    shard: int = 0
    """The shard of the ready list. The other states are listed across all shards."""
    topic: str = ""
    """The topic of the ready list, or of the lane."""
    foreign: bytes = b""
    """The id in a cursor, if it is no text."""


class Query(msgspec.Struct, frozen=True, array_like=True):
    """The tasks that are asked for."""

    states: tuple[State, ...]
    topic: str | None = None
    begin_ms: int | None = None
    """Due at this instant or later."""
    end_ms: int | None = None
    """Due before this instant."""
    tag: str | None = None
    holder: str | None = None
    newest: bool = False
    """The latest deaths first."""
    failed: bool = False
    """Only those with an attempt that failed."""
    key: str | None = None

    @classmethod
    def checked(
        cls,
        topic: str | None = None,
        *,
        state: str | None = None,
        due: Due | None = None,
        tag: str | None = None,
        failed: bool = False,
        key: str | None = None,
        everything: bool = False,
        holder: str | None = None,
        newest: bool = False,
    ) -> Query:
        """Checks the filter of a list. Without any it is of all tasks, and ``everything=True`` says so."""
        if not isinstance(everything, bool):
            raise InvalidOption(f"everything={quoted(everything)} is not possible; give True for all tasks")
        if not isinstance(failed, bool):
            raise InvalidOption(f"failed={quoted(failed)} is not possible; give True for tasks that wait for a retry")
        if everything and any(each is not None for each in (topic, state, due, tag, key, failed or None, holder)):
            raise InvalidOption(
                "everything=True stands alone: leave it out, or topic=, key=, state=, due=, tag=, failed= and holder="
            )
        if topic is not None:
            check_topic(topic)
        if tag is not None:
            check_tag(tag)
        if key is not None:
            check_key(key)
        if state is not None and state not in (*STATES, *ENDED):
            raise InvalidOption(
                f"state={quoted(state)} is not possible; use one of {', '.join(map(repr, (*STATES, *ENDED)))}, or none"
            )
        states = STATES if state is None else tuple(each for each in (*STATES, *ENDED) if each == state)
        if state in ENDED:
            refused = {"due": due, "tag": tag, "failed": failed or None, "holder": holder}
            if name := next((name for name, value in refused.items() if value is not None), ""):
                raise InvalidOption(
                    f"{name}={quoted(refused[name])} was given with state={quoted(state)}: what is kept of such tasks "
                    "is listed by topic= and key= alone; leave it out"
                )
            newest = False  # they are always listed so
        begin_ms = end_ms = None
        if due is not None:
            states = _only(WAITING, states, f"due={quoted(due)}", "a due time")
            begin_ms, end_ms = _bounds(due)
        if failed:
            states = _only(WAITING, states, "failed=True", "a retry to wait for")
        if holder is not None:
            check_name(holder, of="consumer")
            states = _only(("leased",), states, f"holder={quoted(holder)}", "a holder")
        if not isinstance(newest, bool):
            raise InvalidOption(f"newest={quoted(newest)} is not possible; give True for the latest deaths first")
        if newest:
            states = _only(("dead",), states, "newest=True", "a time of death")
        return cls(states, topic, begin_ms, end_ms, tag, holder, newest, failed, key)

    @property
    def is_of_lanes(self) -> bool:
        """True if this asks for a key, in whatever state: it is listed in the order in which its tasks run."""
        return self.key is not None and self.states == STATES

    @property
    def is_of_ends(self) -> bool:
        """True if this asks for tasks that have ended."""
        return self.states[0] in ENDED

    @property
    def first(self) -> Place:
        return Place("leased" if self.is_of_lanes else self.states[0])

    def after(self, state: State) -> Place | None:
        """The beginning of the state that is listed after this one; None: it was the last."""
        following = self.states[self.states.index(state) + 1 :]
        return Place(following[0]) if following else None

    def cursor(self, name: str, place: Place | None) -> str | None:
        """The cursor of a place, for the engine of that name."""
        if place is None:
            return None
        if is_foreign(place.id):
            place = msgspec.structs.replace(place, id="", foreign=raw(place.id))
        text = msgspec.json.encode(place)
        return urlsafe_b64encode(self._sums(name, text) + text).rstrip(b"=").decode()

    def place(self, name: str, cursor: str | None) -> Place:
        """The place of a cursor; the first one without a cursor. Raises InvalidOption."""
        if cursor is None:
            return self.first
        if not isinstance(cursor, str):
            raise InvalidOption(f"a cursor can't be {quoted(cursor)}; give the .cursor of a page, or None to begin")
        try:
            data = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
            text = data[8:]
            place = msgspec.json.decode(text, type=Place)
        except UNDECODABLE:
            raise InvalidOption(_MALFORMED.format(cursor)) from None
        own, asked = self._sums(name, text)[:4], self._sums(name, text)[4:]
        if data[:4] != own:
            raise InvalidOption(_MALFORMED.format(cursor))
        if data[4:8] != asked:
            raise InvalidOption(
                f"the cursor {quoted(cursor)} is of another query, or of another engine; give the same topic=, key=, "
                "state=, due=, tag=, failed=, holder= and newest= as in the call that returned it (the same instants "
                "in due=), or no cursor to begin"
            )
        return msgspec.structs.replace(place, id=id_of(place.foreign), foreign=b"") if place.foreign else place

    def _sums(self, name: str, text: bytes) -> bytes:
        asked = crc32(name.encode() + b"/" + msgspec.json.encode(self, enc_hook=str))
        return crc32(text).to_bytes(4, "big") + asked.to_bytes(4, "big")


_MALFORMED = (
    "the cursor {!r:.80} is not one that a page gave, or not all of it; give the .cursor of a page as it is, or none "
    "to begin"
)


def dead_filter(
    *,
    state: State | None = "dead",
    due: Due | None = None,
    tag: str | None = None,
    key: str | None = None,
    failed: bool = False,
    everything: bool = False,
) -> Filter:
    """Returns the filter of dead tasks, without their state. Refuses one by which no dead task is left."""
    Query.checked(state=state, due=due, failed=failed)
    if state in ENDED:
        raise InvalidOption(
            f"state={quoted(state)} matches no dead task, and the payloads of such tasks are not kept: push them again"
        )
    if state != "dead":
        raise InvalidOption(f"state={quoted(state)} matches no dead task: leave it out, or use tasks()")
    return {"tag": tag, "key": key, "everything": everything}


def check_limit(limit: int) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidOption(
            f"limit={quoted(limit)} is not possible; give an int from 1 to {MAX_LIMIT:,}, and the .cursor of each "
            "page with "
            "the next call for more"
        )


def _only(having: tuple[State, ...], states: tuple[State, ...], given: str, what: str) -> tuple[State, ...]:
    """The states whose tasks have what a filter asks for."""
    if left := tuple(each for each in states if each in having):
        return left
    raise InvalidOption(
        f"{given} was given with state={quoted(states[0])}, but only {' and '.join(having)} tasks have {what}; use "
        f"state={quoted(having[0])}, or leave one of them out"
    )


def _bounds(due: Due) -> tuple[int | None, int | None]:
    if not isinstance(due, tuple) or len(due) != 2:
        raise InvalidOption(
            f"due={quoted(due)} is not possible; give (from, to), two instants, or None for an open end"
        )
    begin_ms, end_ms = (None if at is None else instant_ms(at, "due") for at in due)
    if begin_ms is not None and end_ms is not None and begin_ms >= end_ms:
        raise InvalidOption(f"due={quoted(due)} holds nothing: its end must be later than its beginning")
    return begin_ms, end_ms


# ---- the reasons of dead tasks

_VARYING = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|[0-9]+")
"""UUIDs, addresses and numbers."""

_LENGTH = 160


@dataclass(slots=True)
class Group:
    """Tasks of one cause: dead ones, or those that wait for a retry."""

    cause: str
    count: int = 0
    topics: set[str] = field(default_factory=set)
    first: dt.datetime | None = None
    """When the first of them died, or is due."""
    last: dt.datetime | None = None
    example: str = ""
    """The id of the last one."""


def cause_of(reason: str | None) -> str:
    """The error of a traceback, without what differs from task to task.

    >>> cause_of("Traceback …\\n  File x\\nKeyError: 'order-4711'")
    "KeyError: 'order-#'"
    """
    lines = (reason or "").strip().rpartition("\n")
    return _VARYING.sub("#", lines[2][:_LENGTH].strip()) or "no reason was given"


def grouped(tasks: Iterable[TaskInfo]) -> list[Group]:
    """The groups of tasks that are dead, or wait for a retry: that of the latest death, or retry, first."""
    groups: dict[str, Group] = {}
    for task in sorted(tasks, key=lambda task: task.died or task.due or dt.datetime.min.replace(tzinfo=dt.UTC)):
        cause, at = cause_of(task.reason), task.died or task.due
        group = groups.pop(cause, None) or Group(cause, first=at)
        group.count += 1
        group.topics.add(task.topic)
        group.last, group.example = at, task.id
        groups[cause] = group
    return [*reversed(groups.values())]
