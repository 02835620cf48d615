"""A schedule as it is stored: its declaration, which callers give, and its state, which changes with every push.

Both are JSON in the hash ``schedules`` (see ``lua/README.md``). A declaration is written without a look at how far the
pushing is: the dispatcher that pushes finds out that it is another one (``Entry.renewed``). No I/O; every function that
changes a state returns another one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mmh3
import msgspec

from shardq.core.layout.words import UNDECODABLE
from shardq.core.model.checks import MAX_AT_MS, check_key, check_topic, check_whole_id
from shardq.core.model.record import encoded_parts
from shardq.errors import BadInput, PayloadNotDecodable
from shardq.features.schedules.every import (
    LEAST_INTERVAL_MS,
    MOST_INTERVAL_MS,
    MOST_JITTER_S,
    CatchUp,
    Every,
    Overlap,
    Timetable,
    timetable,
)
from shardq.features.schedules.ids import schedule_id

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)

STAYS_MS = 1000
"""Occurrences that were pushed and are due within this time stay as they are when another declaration takes the place
of theirs: to push them anew takes some milliseconds, on a busy machine some hundred, and none is to be late by that.
"""


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task that a schedule pushes, and the times of its occurrences."""

    cron: str | None
    interval_ms: int | None
    tz: str
    topic: str
    jitter_ms: int
    catch_up: CatchUp
    record: bytes
    """Encoded by the codec of the declaring engine: pushed by processes that can't decode it. Its head has no expiry
    and no nonce.
    """
    start_ms: int | None = None
    end_ms: int | None = None
    expires_ms: int | None = None  # an occurrence that is not begun so long after its time is worth nothing
    overlap: Overlap = "allow"
    owner: str = ""
    key: str | None = None
    declared_ms: int = 0  # the instant at which it took the place of another one

    @classmethod
    def of(cls, every: Every, *, topic: str, key: str | None, record: bytes) -> Declaration:
        return cls(
            cron=None if every.cron is None else " ".join(every.cron.split()),
            interval_ms=every.interval_ms,
            tz=every.zone,
            topic=topic,
            jitter_ms=every.jitter_ms,
            catch_up=every.catch_up,
            record=record,
            start_ms=every.start_ms,
            end_ms=every.end_ms,
            expires_ms=every.expires_ms,
            overlap=every.overlap,
            owner=every.owner,
            key=key,
        )

    def timetable(self) -> Timetable:
        """Raises InvalidOption where it can't be computed."""
        return timetable(self.cron, self.interval_ms, self.tz, start_ms=self.start_ms, end_ms=self.end_ms)

    @property
    def beginning(self) -> str:
        """The part of the ids of its tasks before their names."""
        return self.topic if self.key is None else f"{self.topic}/{self.key}"

    @property
    def times(self) -> str:
        """A text that is equal for declarations with the same occurrences."""
        return _digest(self.cron, self.interval_ms, self.tz, self.start_ms, self.end_ms)

    @property
    def tasks(self) -> str:
        """A text that is equal for declarations that push the same tasks at the same times."""
        return _digest(self.times, self.beginning, self.jitter_ms, self.record, self.expires_ms, self.overlap)


def _digest(*parts: object) -> str:
    return f"{mmh3.hash128(encode(parts)):032x}"


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a schedule is. The argument of every compare-and-set: no two states of a schedule are the same."""

    generation: int  # counts the changes. Each has ids of its own, so that none is taken for another's
    since_ms: int  # every occurrence up to it has been dealt with
    changed_ms: int  # the instant at which it was paused, resumed, removed, or declared first
    times: str  # Declaration.times of the occurrences that since_ms counts
    tasks: str = ""  # Declaration.tasks of those in batch
    topic: str = ""  # the topic of those in batch, and their key: the beginning of their ids
    jitter_ms: int = 0
    """Likewise."""
    batch: tuple[int, ...] = ()  # the occurrences that are to be pushed, or were pushed last
    pushed: int = 0  # the number of the first ones of batch that are surely pushed
    last_ms: int | None = None  # the last occurrence that was due, of those before batch
    last_id: str = ""  # the id of the last occurrence that was, or is to be, pushed
    skipped: int = 0  # the number of occurrences that were left out because another one was not finished
    paused: bool = False
    removed: bool = False  # it is kept for a while, so that one of the same name goes on with the next generation
    stay: tuple[tuple[str, int, int], ...] = ()
    """Ids of an earlier generation that run still, with their occurrences and due times."""
    retract: tuple[tuple[str, int, bool], ...] = ()
    """Ids of an earlier generation that must not run, with their occurrences; True: to be pushed in this one."""
    held: tuple[str, ...] = ()  # those that are held back, and are to be cancelled

    @property
    def is_pushed(self) -> bool:
        return self.pushed >= len(self.batch)

    @property
    def is_clear(self) -> bool:
        """True if nothing is left to be taken back."""
        return not (self.retract or self.held)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A schedule that another version, or another program, has written in a way that can't be read here."""

    name: str
    stored: bytes
    problem: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One schedule as it was read."""

    name: str
    declaration: Declaration
    state: State
    stored: bytes  # the state, byte for byte

    def following(self, state: State) -> Entry:
        """The same schedule with another state."""
        return Entry(self.name, self.declaration, state, encode(state))

    @property
    def is_listed(self) -> bool:
        return not self.state.removed

    @property
    def is_renewed(self) -> bool:
        """True if the state goes by this declaration, with all that was pushed."""
        state, declaration = self.state, self.declaration
        return state.tasks == declaration.tasks or (not state.batch and state.times == declaration.times)

    @property
    def since_ms(self) -> int:
        """Every occurrence up to it has been dealt with, or was before the declaration."""
        state, declaration = self.state, self.declaration
        return state.since_ms if state.times == declaration.times else declaration.declared_ms

    def id_of(self, occurrence: int) -> str:
        """The id of an occurrence in the batch."""
        text = (_EPOCH + dt.timedelta(milliseconds=occurrence)).isoformat(
            timespec="milliseconds" if occurrence % 1000 else "seconds"
        )
        generation = f"~{self.state.generation}" if self.state.generation > 1 else ""
        return f"{schedule_id(self.state.topic, self.name)}{text.removesuffix('+00:00')}Z{generation}"

    def due(self, occurrence: int) -> int:
        """The instant at which an occurrence is due by the declaration: its own, and a jitter that is the same for each
        process that pushes it.
        """
        return self._due(occurrence, self.declaration.jitter_ms)

    def pushed_due(self, occurrence: int) -> int:
        """The same of one in the batch, which may be by an earlier declaration."""
        return self._due(occurrence, self.state.jitter_ms)

    def _due(self, occurrence: int, jitter_ms: int) -> int:
        if not jitter_ms:
            return occurrence
        return occurrence + (mmh3.hash(f"{self.name}@{occurrence}", signed=False) * jitter_ms >> 32)

    def ahead(self, now_ms: int) -> list[int]:
        """The occurrences of the batch that can be taken back: they are not due yet, or not surely pushed."""
        state = self.state
        return [at for n, at in enumerate(state.batch) if n >= state.pushed or self.pushed_due(at) > now_ms]

    def last(self, now_ms: int) -> int | None:
        """The last occurrence that was pushed and is due."""
        state = self.state
        past = [at for at in state.batch[: state.pushed] if self.pushed_due(at) <= now_ms]
        return _latest(state.last_ms, *past, *(at for _, at, due in state.stay if due <= now_ms))

    # ---- following states

    def intending(self, occurrences: list[int], now_ms: int) -> State:
        """These occurrences are about to be pushed. Those pushed before that are not due yet can be retracted still."""
        declaration = self.declaration
        ahead = [at for at in self.state.batch if self.pushed_due(at) > now_ms]
        state = msgspec.structs.replace(
            self.state,
            topic=declaration.beginning,
            jitter_ms=declaration.jitter_ms,
            tasks=declaration.tasks,
            batch=(*ahead, *occurrences),
            pushed=len(ahead),
            since_ms=occurrences[-1],
            last_ms=self.last(now_ms),
            stay=self._staying(now_ms),
        )
        last_id = Entry(self.name, declaration, state, b"").id_of(occurrences[-1])
        return msgspec.structs.replace(state, last_id=last_id)

    def skipping(self, occurrences: list[int]) -> State:
        """These occurrences are left out."""
        return msgspec.structs.replace(
            self.state, since_ms=occurrences[-1], skipped=self.state.skipped + len(occurrences)
        )

    def changed(self, now_ms: int, *, paused: bool, removed: bool = False) -> State:
        """The first state of another generation, which goes on from now. What is ahead is to be retracted."""
        state = self.state
        ahead = [(self.id_of(at), at) for at in self.ahead(now_ms)]
        ahead += [(id, at) for id, at, _ in self._staying(now_ms)]
        earlier = [(id, at) for id, at, _ in state.retract]
        return State(
            generation=state.generation + 1,
            since_ms=now_ms,
            changed_ms=now_ms,
            times=self.declaration.times,
            last_ms=self._last_before(ahead, now_ms),
            last_id=state.last_id,
            skipped=state.skipped,
            paused=paused,
            removed=removed,
            retract=tuple((id, at, False) for id, at in (*earlier, *ahead)),
            held=state.held,
        )

    def renewed(self, now_ms: int) -> State:
        """The first state of another generation, by another declaration than that of the batch.

        With the same times the occurrences that are taken back are pushed anew, whenever that is done; else it goes on
        by its own times, from the declaration or from what runs still. What may not overlap is planned anew.
        """
        state, declaration = self.state, self.declaration
        soon_ms = now_ms + STAYS_MS
        taken = self.ahead(soon_ms)
        kept = [at for at in state.batch if at not in set(taken)]
        same_times = state.times == declaration.times
        goes_on = same_times and declaration.overlap == "allow"
        since_ms = state.since_ms
        if not goes_on and (taken or not same_times):
            since_ms = max([min(taken) - 1 if same_times else declaration.declared_ms, *kept])
        stay = [(self.id_of(at), at, due) for at in kept if (due := self.pushed_due(at)) > now_ms]
        retract = [(self.id_of(at), at) for at in taken]
        return State(
            generation=state.generation + 1,
            since_ms=since_ms,
            changed_ms=state.changed_ms,
            times=declaration.times,
            tasks=declaration.tasks,
            topic=declaration.beginning,
            jitter_ms=declaration.jitter_ms,
            last_ms=self._last_before([*retract, *((id, at) for id, at, _ in stay)], now_ms),
            last_id=state.last_id,
            skipped=state.skipped,
            paused=state.paused,
            stay=(*self._staying(now_ms), *stay),
            retract=tuple((id, at, goes_on) for id, at in retract),
            held=state.held,
        )

    def retracted(self, held: set[str]) -> State:
        """The occurrences to be taken back are held back, or ran."""
        state = self.state
        ran = [at for id, at, _ in state.retract if id not in held]
        again = sorted(at for id, at, again in state.retract if again and id in held)
        return msgspec.structs.replace(
            state,
            batch=tuple(again),
            since_ms=max([state.since_ms, *ran]),
            last_ms=_latest(state.last_ms, *ran),
            last_id=Entry(self.name, self.declaration, state, b"").id_of(again[-1]) if again else state.last_id,
            retract=(),
            held=(*state.held, *(id for id, _, _ in state.retract if id in held)),
        )

    def _staying(self, now_ms: int) -> tuple[tuple[str, int, int], ...]:
        return tuple(each for each in self.state.stay if each[2] > now_ms)

    def _last_before(self, ahead: list[tuple[str, int]], now_ms: int) -> int | None:
        last = self.last(now_ms)
        return None if last in {at for _, at in ahead} else last


def _latest(*occurrences: int | None) -> int | None:
    return max((at for at in occurrences if at is not None), default=None)


def declared(
    entry: Entry | Unreadable | None, declaration: Declaration, now_ms: int
) -> tuple[State, Declaration] | None:
    """The state and the declaration of a schedule when this is declared; None if that changes nothing."""
    declaration = msgspec.structs.replace(declaration, declared_ms=now_ms)
    if not isinstance(entry, Entry):
        # what cannot be read may have pushed the ids of any generation
        generation = 1 if entry is None else now_ms // 1000
        return State(generation=generation, since_ms=now_ms, changed_ms=now_ms, times=declaration.times), declaration
    if not entry.is_listed:
        return Entry(entry.name, declaration, entry.state, b"").changed(now_ms, paused=False), declaration
    present = msgspec.structs.replace(entry.declaration, declared_ms=now_ms)
    return None if present == declaration else (entry.state, declaration)


_decode_state = msgspec.json.Decoder(State).decode
_decode_declaration = msgspec.json.Decoder(Declaration).decode
encode: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=str).encode  # of a subclass of str the text


def decode_entry(name: str, state: bytes, declaration: bytes) -> Entry | Unreadable:
    try:
        entry = Entry(name, _decode_declaration(declaration), _decode_state(state), state)
        _check_declaration(entry.declaration)
        _check_state(entry.state)
        return entry
    except (*UNDECODABLE, PayloadNotDecodable) as exc:  # BadInput is a ValueError
        missing = "declaration" if not declaration else "state" if not state else ""
        problem = f"its {missing} is missing" if missing else str(exc)
        return Unreadable(name, state, f"another version of shardq, or another program, wrote it: {problem}")


def _check_declaration(declaration: Declaration) -> None:
    """Raises BadInput or PayloadNotDecodable for what no caller can have declared."""
    if declaration.cron is None and declaration.interval_ms is None:
        raise BadInput("it has neither a cron expression nor an interval")
    if declaration.interval_ms is not None and not LEAST_INTERVAL_MS <= declaration.interval_ms <= MOST_INTERVAL_MS:
        raise BadInput(f"its interval is {declaration.interval_ms} ms")
    if not 0 <= declaration.jitter_ms <= MOST_JITTER_S * 1000:
        raise BadInput(f"its jitter is {declaration.jitter_ms} ms")
    check_topic(declaration.topic)
    if declaration.key is not None:
        check_key(declaration.key)
    encoded_parts(declaration.record)
    _check_instants(declaration.start_ms, declaration.end_ms, declaration.expires_ms, declaration.declared_ms)


def _check_state(state: State) -> None:
    """Likewise, for what no process can have noted."""
    check_whole_id(schedule_id(state.topic, "any"))
    if not (0 <= state.jitter_ms <= MOST_JITTER_S * 1000 and 0 <= state.pushed <= len(state.batch)):
        raise BadInput(f"{state.pushed} of {len(state.batch)} are pushed, with a jitter of {state.jitter_ms} ms")
    stays = [at for _, *both in state.stay for at in both]
    retracts = [at for _, at, _ in state.retract]
    _check_instants(state.since_ms, state.changed_ms, state.last_ms, *state.batch, *stays, *retracts)


def _check_instants(*instants: int | None) -> None:
    for at in instants:
        if at is not None and not 0 <= at <= MAX_AT_MS:
            raise BadInput(f"{at} is not an instant in ms that can be shown")
