"""Declaring, listing, pausing, resuming, removing and running schedules: the operations, written once for both engines.

Each reads the schedule, decides, and writes it if nobody else has changed it meanwhile; else it begins anew.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace

from shardq.calls import schedules
from shardq.errors import BadInput, PayloadNotDecodable, ServerFault, Unavailable, UnknownSchedule
from shardq.model.ids import full_id
from shardq.model.record import Codec, decode_record
from shardq.model.task import Receipt
from shardq.operation import Operation
from shardq.producer import pushing
from shardq.producer.packing import Entries, Packer
from shardq.schedules.entry import Declaration, Entry, State, declared, decode_entry, encode
from shardq.schedules.every import Schedule
from shardq.schedules.planning import next_occurrence
from shardq.schedules.retracting import retract
from shardq.topology_cache import TopologyCache

_TRIES = 100
"""A dispatcher writes a schedule twice in ten seconds, and a fleet that declares it writes it once."""

OVERDUE_MS = 20_000
"""A dispatcher that dies is replaced within ten seconds; where there is none, this is told."""

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)

Change = Callable[[Entry | None, int], State | None]
"""A schedule as it is and the server's clock → its following state; None: nothing is to be changed."""


def _change(
    cache: TopologyCache, name: str, change: Change, declaration: Declaration | None = None
) -> Operation[Entry | None]:
    """Changes a schedule, and takes back what was pushed ahead of it. Returns it as it is then."""
    for _ in range(_TRIES):
        now_ms, entry = yield from _read(cache, name)
        state = change(entry, now_ms)
        if state is not None:
            present = declaration or (entry.declaration if entry else None)
            assert present is not None, "only a declaration makes a schedule"
            written = yield schedules.set_schedule(
                cache.control,
                name,
                seen=entry.stored if entry else b"",
                state=encode(state),
                declaration=encode(declaration) if declaration else b"",
                tell=True,
            )
            if not written:
                continue
            entry = Entry(name, present, state, encode(state))
        if entry is None:
            return None
        following = yield from retract(cache, entry)
        if following is not None:
            return replace(entry, state=following, stored=encode(following))
    raise Unavailable(f"the schedule {name!r} was changed by others again and again; repeat it")


def _read(cache: TopologyCache, name: str) -> Operation[tuple[int, Entry | None]]:
    found = yield schedules.schedules(cache.control, [name])
    return found.now_ms, decode_entry(name, *found.stored[name]) if name in found.stored else None


def declare(cache: TopologyCache, name: str, declaration: Declaration) -> Operation[None]:
    yield from _change(cache, name, lambda entry, now_ms: declared(entry, declaration, now_ms), declaration)


def pause(cache: TopologyCache, name: str, *, paused: bool) -> Operation[None]:
    def change(entry: Entry | None, now_ms: int) -> State | None:
        entry = _listed(name, entry)
        return None if entry.state.paused == paused else entry.changed(now_ms, onwards=False, paused=paused)

    yield from _change(cache, name, change)


def remove(cache: TopologyCache, name: str) -> Operation[bool]:
    """Returns True if there was one."""
    found = False

    def change(entry: Entry | None, now_ms: int) -> State | None:
        nonlocal found
        if entry is None or not entry.is_listed:
            return None
        found = True
        return entry.changed(now_ms, onwards=False, paused=False, removed=True)

    yield from _change(cache, name, change)
    return found


def run_now(cache: TopologyCache, packer: Packer, name: str) -> Operation[Receipt]:
    """Pushes a task of the schedule that is due now, beside its occurrences."""
    _, found = yield from _read(cache, name)
    declaration = _listed(name, found).declaration
    id, due, record = packer.again(full_id(declaration.topic, name), 0, declaration.record)
    return (yield from pushing.push_one(cache, packer, Entries(ids=[id], fresh=[id, due, record])))


def listed(cache: TopologyCache, codec: Codec) -> Operation[list[Schedule]]:
    """All schedules, by name."""
    found = yield schedules.schedules(cache.control)
    entries = [decode_entry(name, *stored) for name, stored in sorted(found.stored.items())]
    return [_shown(entry, codec, found.now_ms) for entry in entries if entry.is_listed]


@dataclass(frozen=True, slots=True)
class Summary:
    """All schedules, in numbers."""

    count: int
    paused: int
    overdue: tuple[str, ...]
    """Those of which nobody has pushed an occurrence that was due ``OVERDUE_MS`` ago."""


def summary(cache: TopologyCache) -> Operation[Summary | None]:
    """None if the control slot does not answer. Where there are no schedules, one command says so."""
    try:
        if not (yield schedules.are_there_schedules(cache.control).briefly()):
            return Summary(0, 0, ())
        found = yield schedules.schedules(cache.control).briefly()
    except ServerFault:
        return None
    entries = [decode_entry(name, *stored) for name, stored in sorted(found.stored.items())]
    entries = [entry for entry in entries if entry.is_listed]
    return Summary(
        count=len(entries),
        paused=sum(entry.state.paused for entry in entries),
        overdue=tuple(entry.name for entry in entries if _is_overdue(entry, found.now_ms)),
    )


def _is_overdue(entry: Entry, now_ms: int) -> bool:
    state = entry.state
    if state.paused:
        return False
    if not state.pushed:
        return entry.due(state.batch[0]) < now_ms - OVERDUE_MS
    if entry.declaration.catch_up == "none":
        return False  # what was missed stays so, whoever is there
    try:
        first = next(entry.declaration.timetable().after(state.since_ms), None)
    except BadInput:
        return False
    return first is not None and entry.due(first) < now_ms - OVERDUE_MS


def _listed(name: str, entry: Entry | None) -> Entry:
    if entry is None or not entry.is_listed:
        raise UnknownSchedule(name)
    return entry


def _shown(entry: Entry, codec: Codec, now_ms: int) -> Schedule:
    declaration, following, problem = entry.declaration, None, None
    try:
        following = next_occurrence(entry, declaration.timetable(), now_ms)
    except BadInput as exc:
        problem = str(exc)
    try:
        payload = decode_record(declaration.record, own=codec).payload
    except PayloadNotDecodable:
        payload = None
    return Schedule(
        name=entry.name,
        cron=declaration.cron,
        interval=None if declaration.interval_ms is None else declaration.interval_ms / 1000,
        tz=declaration.tz,
        topic=declaration.topic,
        payload=payload,
        jitter=declaration.jitter_ms / 1000,
        catch_up=declaration.catch_up,
        paused=entry.state.paused,
        next=_instant(following),
        last=_instant(entry.last(now_ms)),
        problem=problem,
    )


def _instant(ms: int | None) -> dt.datetime | None:
    return None if ms is None else _EPOCH + dt.timedelta(milliseconds=ms)
