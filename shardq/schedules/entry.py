"""A schedule as it is stored: its declaration, which a caller gives, and its state, which changes with every push.

Both are JSON in the hash ``schedules`` (see ``lua/README.md``). Nothing here waits or asks; every function that changes
a state returns another one.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import mmh3
import msgspec

from shardq.model.ids import full_id
from shardq.schedules.every import CatchUp, Every
from shardq.schedules.timetable import Timetable, timetable

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """The task that a schedule pushes, and the times of its occurrences."""

    cron: str | None
    interval_ms: int | None
    tz: str
    topic: str
    jitter_ms: int
    catch_up: CatchUp
    record: bytes
    """Encoded by the codec of the declaring engine: pushed by processes that can't decode it. Its head has no more than
    the attempts of a named task.
    """

    @classmethod
    def of(cls, every: Every, *, topic: str, record: bytes) -> Declaration:
        return cls(
            cron=None if every.cron is None else " ".join(every.cron.split()),
            interval_ms=every.interval_ms,
            tz=every.zone,
            topic=topic,
            jitter_ms=every.jitter_ms,
            catch_up=every.catch_up,
            record=record,
        )

    def timetable(self) -> Timetable:
        """Raises InvalidOption where it can't be computed."""
        return timetable(self.cron, self.interval_ms, self.tz)

    def is_timed_like(self, other: Declaration) -> bool:
        return (self.cron, self.interval_ms, self.tz) == (other.cron, other.interval_ms, other.tz)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """How far a schedule is. The only argument of a compare-and-set: no two states of a schedule are the same."""

    generation: int
    """Counts the changes. Each has ids of its own, so that none is taken for another's."""
    since_ms: int
    """Every occurrence up to it has been dealt with."""
    changed_ms: int
    """The instant of the last change."""
    batch: tuple[int, ...] = ()
    """The occurrences that are to be pushed, or were pushed last."""
    pushed: bool = True
    """True when all of ``batch`` are pushed."""
    last_ms: int | None = None
    """The last occurrence that was due, of those before ``batch``."""
    paused: bool = False
    removed: bool = False
    """It is kept for a while, so that one of the same name goes on with the next generation."""
    retract: tuple[tuple[str, int], ...] = ()
    """Ids of an earlier generation that must not run, with their occurrences."""
    held: tuple[str, ...] = ()
    """Those that are held back, and are to be cancelled."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One schedule as it was read."""

    name: str
    declaration: Declaration
    state: State
    stored: bytes
    """The state, byte for byte."""

    @property
    def is_listed(self) -> bool:
        return not self.state.removed

    def id_of(self, occurrence: int) -> str:
        """The id of an occurrence of the present generation."""
        text = (_EPOCH + dt.timedelta(milliseconds=occurrence)).isoformat(
            timespec="milliseconds" if occurrence % 1000 else "seconds"
        )
        generation = f"~{self.state.generation}" if self.state.generation > 1 else ""
        unique = f"every-{self.name}@{text.removesuffix('+00:00')}Z{generation}"
        return full_id(self.declaration.topic, unique)

    def due(self, occurrence: int) -> int:
        """The instant at which an occurrence is due: its own, and a jitter that is the same for whoever pushes it."""
        jitter_ms = self.declaration.jitter_ms
        return occurrence + (mmh3.hash(f"{self.name}@{occurrence}", signed=False) * jitter_ms >> 32)

    def last(self, now_ms: int) -> int | None:
        """The last occurrence that was pushed and is due."""
        past = [at for at in self.state.batch if self.due(at) <= now_ms] if self.state.pushed else []
        return max([*past, *([self.state.last_ms] if self.state.last_ms is not None else [])], default=None)

    # ---- following states

    def intending(self, occurrences: list[int], now_ms: int) -> State:
        """These occurrences are about to be pushed. Those pushed before that are not due yet can be retracted still."""
        ahead = [at for at in self.state.batch if self.due(at) > now_ms]
        return msgspec.structs.replace(
            self.state,
            batch=(*ahead, *occurrences),
            pushed=False,
            since_ms=occurrences[-1],
            last_ms=self.last(now_ms),
        )

    def changed(self, now_ms: int, *, onwards: bool, paused: bool | None = None, removed: bool | None = None) -> State:
        """The first state of another generation. What is not due yet, or not surely pushed, is to be retracted.

        ``onwards``: it goes on from where this generation is; else from now.
        """
        state = self.state
        open_ends = [at for at in state.batch if not state.pushed or self.due(at) > now_ms]
        since_ms = min([state.since_ms, *(at - 1 for at in open_ends)]) if onwards else now_ms
        return State(
            generation=state.generation + 1,
            since_ms=since_ms,
            changed_ms=now_ms,
            last_ms=max([at for at in (self.last(now_ms),) if at is not None and at not in open_ends], default=None),
            paused=state.paused if paused is None else paused,
            removed=state.removed if removed is None else removed,
            retract=(*state.retract, *((self.id_of(at), at) for at in open_ends)),
            held=state.held,
        )


def declared(entry: Entry | None, declaration: Declaration, now_ms: int) -> State | None:
    """The state of a schedule when this is declared; None if that changes nothing."""
    if entry is None:
        return State(generation=1, since_ms=now_ms, changed_ms=now_ms)
    if not entry.is_listed:
        return entry.changed(now_ms, onwards=False, paused=False, removed=False)
    if entry.declaration == declaration:
        return None
    return entry.changed(now_ms, onwards=declaration.is_timed_like(entry.declaration))


_decode_state = msgspec.json.Decoder(State).decode
_decode_declaration = msgspec.json.Decoder(Declaration).decode
encode = msgspec.json.Encoder().encode


def decode_entry(name: str, state: bytes, declaration: bytes) -> Entry:
    """Raises msgspec.MsgspecError on what another version has written."""
    return Entry(name, _decode_declaration(declaration), _decode_state(state), state)
