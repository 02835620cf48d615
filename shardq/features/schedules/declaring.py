"""Declaring, listing, pausing, resuming, removing and running schedules: the operations, written once for both engines.

Each reads the schedule, decides, and writes it unless another process has changed it meanwhile; else it begins anew.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from shardq.core.model.checks import shown_instant
from shardq.core.model.record import Codec, decode_record, with_expiry
from shardq.core.model.task import Receipt
from shardq.core.operation import Operation
from shardq.core.producer import pushing
from shardq.core.producer.packing import Entries, Packer
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import take_up_keys
from shardq.errors import AnotherEngine, BadInput, PayloadNotDecodable, ServerFault, Unavailable, UnknownSchedule
from shardq.features.schedules import requests
from shardq.features.schedules.entry import Declaration, Entry, Unreadable, declared, encode
from shardq.features.schedules.every import Schedule
from shardq.features.schedules.ids import schedule_id
from shardq.features.schedules.occurrences import next_occurrence
from shardq.features.schedules.pushing_ahead import cancel_held, dated, hold_back, read, read_all
from shardq.features.schedules.requests import Change

_TRIES = 100  # a dispatcher writes a schedule a few times in ten seconds
OVERDUE_MS = 20_000  # a dispatcher that dies is replaced within ten seconds; where there is none, this is told

Decide = Callable[[Entry | Unreadable | None, int], Change | None]
"""A schedule as it is and the server's clock → what is to be written; None: nothing."""


def _change(cache: TopologyCache, name: str, decide: Decide, *, takes_back: bool) -> Operation[None]:
    """Changes a schedule. ``takes_back``: what was pushed ahead of it, too, also where another process left that."""
    for _ in range(_TRIES):
        found = yield from read(cache, [name])
        change = decide(found.get(name), found.now_ms)
        epoch = cache.topology.stamp
        if change is not None and not (yield requests.set_schedule(cache.control, epoch, [change], tell=True))[0]:
            continue
        if not takes_back or (yield from _take_back(cache, name)):
            return
    raise Unavailable(f"the schedule {name!r} was changed by others again and again; repeat it")


def _take_back(cache: TopologyCache, name: str) -> Operation[bool]:
    """Returns False if another process has changed the schedule meanwhile."""
    entry = (yield from read(cache, [name])).entries.get(name)
    if entry is None or not (entry.state.paused or entry.state.removed):
        return True  # dispatchers do it
    for stage, part in ((hold_back, "retract"), (cancel_held, "held")):
        if getattr(entry.state, part):
            written = yield from stage(cache, [entry])
            if name in written.errors:
                raise written.errors[name]
            if name not in written.entries:
                return False
            entry = written.entries[name]
    return True


def declare(cache: TopologyCache, name: str, declaration: Declaration) -> Operation[None]:
    """Writes it down. The dispatcher that pushes takes back what was pushed by an earlier declaration."""
    if declaration.key is not None:
        yield from take_up_keys(cache)

    def decide(entry: Entry | Unreadable | None, now_ms: int) -> Change | None:
        following = declared(entry, declaration, now_ms)
        if following is None:
            return None
        state, dated = following
        is_same = isinstance(entry, Entry) and state is entry.state
        seen = entry.stored if entry is not None else b""
        return Change(name, seen, seen if is_same else encode(state), encode(dated))

    yield from _change(cache, name, decide, takes_back=False)


def pause(cache: TopologyCache, name: str, *, paused: bool) -> Operation[None]:
    def decide(found: Entry | Unreadable | None, now_ms: int) -> Change | None:
        entry = _listed(name, found)
        if entry.state.paused == paused:
            return None
        return Change(name, entry.stored, encode(entry.changed(now_ms, paused=paused)))

    yield from _change(cache, name, decide, takes_back=True)


def remove(cache: TopologyCache, name: str, *, only: Callable[[Entry], bool] | None = None) -> Operation[bool]:
    """Nothing is kept of one that can't be read. ``only``: a schedule for which this is true; returns True if there was
    one. Without ``only`` raises UnknownSchedule if there is none.
    """
    existed = False

    def decide(entry: Entry | Unreadable | None, now_ms: int) -> Change | None:
        nonlocal existed
        if only is not None and not (isinstance(entry, Entry) and only(entry)):
            return None
        if isinstance(entry, Unreadable):
            existed = True
            return Change(name, entry.stored, b"")
        if entry is None or not entry.is_listed:
            return None
        existed = True
        return Change(name, entry.stored, encode(entry.changed(now_ms, paused=False, removed=True)))

    yield from _change(cache, name, decide, takes_back=True)
    if only is None and not existed:
        raise UnknownSchedule(name)
    return existed


def prune(cache: TopologyCache, owner: str, keep: Collection[str]) -> Operation[list[str]]:
    """Removes the schedules of an owner but those to be kept. Returns their names."""
    found = yield from read_all(cache)
    gone = []
    for name, entry in sorted(found.entries.items()):
        # read again before it is removed: another program may declare it meanwhile
        is_of_owner = name not in keep and entry.is_listed and entry.declaration.owner == owner
        if is_of_owner and (yield from remove(cache, name, only=lambda entry: entry.declaration.owner == owner)):
            gone.append(name)
    return gone


def remove_call(cache: TopologyCache, codec: Codec, name: str, payload: Any) -> Operation[bool]:
    """Removes a schedule if it pushes this payload."""

    def only(entry: Entry) -> bool:
        try:
            return bool(_payload(entry, codec) == payload)
        except PayloadNotDecodable:
            return False

    return (yield from remove(cache, name, only=only))


def run_now(cache: TopologyCache, packer: Packer, name: str) -> Operation[Receipt]:
    """Pushes a task of the schedule that is due now, beside its occurrences."""
    found = yield from read(cache, [name])
    declaration = _listed(name, found.get(name)).declaration
    record = declaration.record
    if declaration.expires_ms is not None:
        record = with_expiry(record, -declaration.expires_ms)
    id = packer.new_id(f"{schedule_id(declaration.beginning, name)}run-")
    return (yield from pushing.push_one(cache, packer, Entries(ids=[id], fresh=[id, 0, dated(cache, id, record)])))


def listed(cache: TopologyCache, codec: Codec) -> Operation[list[Schedule]]:
    """All schedules, by name."""
    found = yield from read_all(cache)
    shown = [_shown(entry, codec, found.now_ms) for entry in found.entries.values() if entry.is_listed]
    shown += [
        Schedule(name=entry.name, problem=f"it can't be read: {entry.problem}") for entry in found.unreadable.values()
    ]
    return sorted(shown, key=lambda schedule: schedule.name)


@dataclass(frozen=True, slots=True)
class Summary:
    """All schedules, in numbers."""

    count: int
    paused: int
    overdue: tuple[str, ...]  # those with an occurrence that was due OVERDUE_MS ago and is not pushed
    unreadable: tuple[str, ...]  # those that can't be read here; they are not in count


def summary(cache: TopologyCache) -> Operation[Summary | None]:
    """None if the control slot does not answer, or is another engine's. Where there are no schedules, one command says
    so.
    """
    try:
        found = yield from read_all(cache, briefly=True)
    except (ServerFault, AnotherEngine):
        return None
    entries = [entry for _, entry in sorted(found.entries.items()) if entry.is_listed]
    return Summary(
        count=len(entries),
        paused=sum(entry.state.paused for entry in entries),
        overdue=tuple(entry.name for entry in entries if _is_overdue(entry, found.now_ms)),
        unreadable=tuple(sorted(found.unreadable)),
    )


def _is_overdue(entry: Entry, now_ms: int) -> bool:
    state = entry.state
    if state.paused:
        return False
    if not state.is_pushed:
        return entry.pushed_due(state.batch[state.pushed]) < now_ms - OVERDUE_MS
    if entry.declaration.catch_up == "none":
        return False  # what was missed stays so
    if entry.since_ms >= now_ms - OVERDUE_MS:
        return False
    try:
        first = next(entry.declaration.timetable().after(entry.since_ms), None)
    except BadInput:
        return False
    return first is not None and entry.due(first) < now_ms - OVERDUE_MS


def _listed(name: str, entry: Entry | Unreadable | None) -> Entry:
    if isinstance(entry, Unreadable):
        raise UnknownSchedule(name, entry.problem)
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
        payload = _payload(entry, codec)
    except PayloadNotDecodable:
        payload = None
    return Schedule(
        name=entry.name,
        cron=declaration.cron,
        interval=None if declaration.interval_ms is None else declaration.interval_ms / 1000,
        tz=declaration.tz,
        topic=declaration.topic,
        key=declaration.key,
        payload=payload,
        jitter=declaration.jitter_ms / 1000,
        catch_up=declaration.catch_up,
        start=_instant(declaration.start_ms),
        end=_instant(declaration.end_ms),
        overlap=declaration.overlap,
        owner=declaration.owner,
        paused=entry.state.paused,
        next=_instant(following),
        last=_instant(entry.last(now_ms)),
        skipped=entry.state.skipped,
        problem=problem,
    )


def _payload(entry: Entry, codec: Codec) -> Any:
    """Raises PayloadNotDecodable."""
    id = schedule_id(entry.declaration.beginning, entry.name)
    return decode_record(entry.declaration.record, own=codec, id=id).payload


def _instant(ms: int | None) -> dt.datetime | None:
    return None if ms is None else shown_instant(ms)
