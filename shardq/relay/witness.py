"""The two witnesses: an outbox's database and each shard of its engine note the same number, a *beat*, once a minute.
They tell when one of the two was restored from an earlier state, which nothing else shows.

A beat is given out by the database first, then written to the shards, and noted in the database as theirs when their
replicas and disks have it. So a shard always has at least what the database has as its beat, and at most what the
database gave out:

- A shard with less came back older. Rows that were moved since are missing there: that is told, and noted in the
  database until somebody has moved them again. Other rows are moved on.
- A shard with more says that the database is the older one: rows that were moved are back, and Redis has forgotten most
  of them. Nothing is moved until somebody says what is to become of these.

No shard is sent a row before its beat was read since it was last away. A database that goes back later shows at the
next claim of rows, which reads the last number that was given out. It uses no SQL and no lock of two systems: each
comparison reads the side first that is to be lower.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shardq.core.calls import node_info
from shardq.core.calls.request import Call, Epoch
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.model.checks import shown_instant
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shards
from shardq.errors import ShardqError
from shardq.relay.confirming import Sent
from shardq.relay.sending import Servers

BEAT_S = 60.0  # between two beats
AGAIN_S = 5.0  # after one that no shard could be asked for: meanwhile rows for them show when they are back

CLOCKS_MS = 300_000
"""The most that the clocks of database and servers may differ. Which rows were moved before a beat goes by both."""

ANSWER_S = 0.5  # the bound of the trip to the shards: rows wait for it

Answers = dict[int, tuple[int, int] | ShardqError]
"""Shard → its highest beat, and its clock in ms; or why it did not answer."""


class OlderDatabase(ShardqError):
    """The database was restored from an earlier state than the servers know."""


class ClocksDiffer(ShardqError):
    """The clocks of database and servers are too far apart."""


@dataclass(frozen=True, slots=True)
class Beats:
    """The beats of an outbox, as its database has them."""

    outbox: str
    """The name of the outbox, which no other has."""
    last: int = 0
    """The last that was given out: an instant in ms, by the clock of the database."""
    shards: Mapping[int, int] = field(default_factory=dict)
    """Shard → the last that its replicas and its disk have."""
    older: Mapping[int, int] = field(default_factory=dict)
    """The shards that came back older → the beat that they had then."""
    kept: int = 0
    """The rows in the table that were moved since the first of these."""
    clock_ms: int = 0

    @property
    def since(self) -> int | None:
        """The instant from which on rows may be missing; None if no shard came back older."""
        return min(self.older.values(), default=None)

    @property
    def missing(self) -> str:
        """The sentence that says so; empty if no shard came back older."""
        if (since := self.since) is None:
            return ""
        named = f"shard{'s' * (len(self.older) > 1)} {', '.join(map(str, sorted(self.older)))}"
        back = f"Redis came back from {stamp(since)}" if since else "Redis came back empty"
        rows = f"up to {self.kept:,} kept rows may be missing there"
        return f"{back} ({named}): {rows}: `shardq outbox again --since {stamp(since)}`"


class Notes(Protocol):
    """The side of the database, for the mover's thread within its turn."""

    def beats(self) -> Beats: ...

    def give_out(self, found: Mapping[int, int], older: Mapping[int, int]) -> Beats:
        """Gives out the next beat, and notes shards that came back older. Raises OlderDatabase if a shard that was
        ``found`` has a later one than the last.
        """

    def have(self, confirmed: Mapping[int, int], span: Collection[int]) -> None:
        """Notes the beats that the replicas and disks of shards have. Shards outside the ``span`` are forgotten."""


class Witness:
    """Beats for one mover, in its thread."""

    def __init__(self, notes: Notes, log: logging.Logger) -> None:
        self.missing: str = ""
        """Which shards came back older, and what to do; empty if none did."""
        self.rows: list[Sent] = []
        """The last beats that were written, as the servers are to confirm them."""
        self._notes = notes
        self._log = log
        self._read = set[int]()  # shards whose beat was read since they were last away
        self._errors: dict[int, ShardqError] = {}
        self._error = ShardqError("its last beat was not read yet")  # of those that are not among the errors
        self._span: Collection[int] = ()
        self._next_at = 0.0

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._next_at

    def unread(self, span: Collection[int]) -> dict[int, ShardqError]:
        """The shards that get no rows yet, and why."""
        return {shard: self._errors.get(shard, self._error) for shard in span if shard not in self._read}

    def away(self, shards: Collection[int]) -> None:
        """Is told of shards that take nothing: they may come back older."""
        self._read.difference_update(shards)

    def doubt(self) -> None:
        """Begins anew: the database was away."""
        self._read.clear()
        self._next_at = 0.0

    def beat(self, servers: Servers, meet: Callable[[Collection[int]], object] = lambda _: None) -> list[Sent]:
        """Compares both sides, and writes the next beat. Returns what the servers are to confirm: ``has_confirmed``
        takes it. Raises what forbids to move rows. ``meet`` is told of the shards that answer, before it is written.
        """
        self._read.clear()
        self.rows = []
        known = self._notes.beats()
        try:
            asked = _asked(servers, known.outbox)
        except ShardqError as exc:
            self._error, self._errors = exc, {}
            self._next_at = time.monotonic() + AGAIN_S
            return []
        self._errors = {shard: told for shard, told in asked.items() if isinstance(told, ShardqError)}
        found = {shard: told for shard, told in asked.items() if not isinstance(told, ShardqError)}
        _compare(known.clock_ms, {shard: clock for shard, (_, clock) in found.items()})
        older = {shard: beat for shard, (beat, _) in found.items() if beat < known.shards.get(shard, 0)}
        given = self._notes.give_out({shard: beat for shard, (beat, _) in found.items()}, older)
        self._tell(given)
        self._read.update(found)
        self._span = asked.keys()
        self._next_at = time.monotonic() + (BEAT_S if found else AGAIN_S)
        with contextlib.suppress(ShardqError):  # they have answered, and may be away again
            meet(found)
            least = {shard: beat for shard, (beat, _) in found.items()}
            written = _asked(servers, given.outbox, given.last, least)
            before = {shard: told[0] for shard, told in written.items() if isinstance(told, tuple)}
            if back := {shard for shard, beat in before.items() if beat < least[shard]}:  # in between: not written
                self._read -= back
                self._next_at = 0.0
            self.rows = [Sent(_row_of(given.last, shard), (shard,), 0) for shard in before.keys() - back]
        return self.rows

    def has_confirmed(self, rows: Collection[Sent]) -> None:
        """Notes the beats among confirmed rows, which have numbers below zero."""
        pairs = sorted(_beat_of(row.seq) for row in rows if row.seq < 0)
        if confirmed := {shard: beat for beat, shard in pairs}:
            self._notes.have(confirmed, self._span)

    def _tell(self, given: Beats) -> None:
        if given.missing and not self.missing:
            self._log.error("tasks of the outbox may be missing: %s", given.missing)
        self.missing = given.missing


def stamp(ms: int) -> str:
    """An instant as commands read it, rounded down to a second."""
    return shown_instant(ms - ms % 1000).strftime("%Y-%m-%dT%H:%M:%SZ")


def older_database(last: int, found: int) -> OlderDatabase:
    """``found``: the highest beat of a shard."""
    then = stamp(found + 999)
    return OlderDatabase(
        f"the database came back from {stamp(last) if last else 'before its first beat'}, and Redis has seen its rows "
        f"until {then}: rows that were moved in between are back, and nothing is moved, as it would run twice; drop "
        f"those that were stored before then (`shardq outbox accept --drop-before {then}`), or move all once more "
        "(`shardq outbox accept --move-again`)"
    )


def asked_beats(servers: Servers, outbox: str) -> dict[int, int]:
    """Shard → its highest beat. Raises the error of a shard that does not answer."""
    return beats_of(_asked(servers, outbox))


def beats_of(answers: Answers) -> dict[int, int]:
    """Shard → its highest beat. Raises the error of a shard that did not answer."""
    found = dict[int, int]()
    for shard, told in answers.items():
        if isinstance(told, ShardqError):
            raise told
        found[shard] = told[0]
    return found


def _asked(servers: Servers, outbox: str, beat: int = 0, least: Mapping[int, int] | None = None) -> Answers:
    return servers.run(lambda cache: ask_shards(cache, outbox, beat, least), timeout=ANSWER_S)


def ask_shards(
    cache: TopologyCache, name: str, beat: int = 0, least: Mapping[int, int] | None = None
) -> Operation[Answers]:
    """Asks all shards, which note a beat that is not 0. ``least``: only these do, unless they have a lower one than
    this by now.
    """

    def make(keys: ShardKeys, epoch: Epoch) -> Call[tuple[int, int]]:
        return node_info.beat(keys, epoch, name, beat, 0 if least is None else least[keys.shard])

    chosen = [keys for keys in cache.span() if least is None or keys.shard in least]
    return (yield from call_shards(cache, {keys.shard: (keys, make) for keys in chosen}))


def _compare(database_ms: int, clocks: Mapping[int, int]) -> None:
    for shard, clock_ms in clocks.items():
        if abs(apart := clock_ms - database_ms) > CLOCKS_MS:
            raise ClocksDiffer(
                f"the clock of shard {shard} is {abs(apart) / 1000:,.0f} s {'ahead of' if apart > 0 else 'behind'} "
                "that of the database, so it can't be told which rows were moved before a restore, and nothing is "
                "moved: run an NTP service on both machines"
            )


def _row_of(beat: int, shard: int) -> int:
    """The number under which the beat of a shard is confirmed like a row. Rows have numbers above zero."""
    return -1 - (beat * MAX_SHARDS + shard)


def _beat_of(row: int) -> tuple[int, int]:
    """The beat and the shard of such a number."""
    return divmod(-1 - row, MAX_SHARDS)
