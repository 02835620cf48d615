"""Reads schedules and writes their states, many in one trip. Pushes occurrences that states intend, each once over the
whole fleet; takes back what was pushed of schedules that were then changed, paused or removed.

The occurrences were written to the state before, where one dispatcher wins. They are pushed under ids made of their
instants; then the state says that they are. A dispatcher that dies in between is followed by another, which finds them
in the state and pushes the same ids again: those count as pushed.

An id is pushed before it is cancelled. So a dispatcher that was stopped on its way to push it, and goes on later, finds
it taken, or remembered. Between the two it is held back at the end of the year 9999, where each that repeats this finds
it: so that one that was held back is never taken for one that ran.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from shardq.core.calls import by_id as calls
from shardq.core.calls.request import Stale, Word
from shardq.core.model.checks import MAX_AT_MS
from shardq.core.model.ids import topic_of
from shardq.core.model.record import RAW, encode_head, encode_record, with_expiry, with_push
from shardq.core.model.task import Outcome
from shardq.core.operation import Many, Operation, values
from shardq.core.producer import commands_by_id, pushing
from shardq.core.producer.packing import Entries, Packer
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_upkeep import refresh
from shardq.errors import ShardqError, Unanswered
from shardq.features.schedules import requests
from shardq.features.schedules.entry import Entry, State, Unreadable, decode_entry
from shardq.features.schedules.occurrences import BEGUN_MS, DAY_MS, dedup_ms
from shardq.features.schedules.requests import Change

_NOTHING = encode_record(RAW, b"", encode_head(expires=1))  # a task that has expired since 1970

_TRIES = 5

_packer = partial(Packer, RAW, max_payload=1)
"""Packs no payload: records are stored ready made."""


@dataclass(slots=True)
class Found:
    """Schedules as they were read, and the clock of the control slot's master."""

    now_ms: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    unreadable: dict[str, Unreadable] = field(default_factory=dict)

    def get(self, name: str) -> Entry | Unreadable | None:
        return self.entries.get(name) or self.unreadable.get(name)


def read(cache: TopologyCache, names: Iterable[str], *, briefly: bool = False) -> Operation[Found]:
    """Reads the schedules of these names. Raises AnotherEngine where an address leads to that."""
    result, left = Found(), list(names)
    while left:
        parts = _parts(left)
        calls = (requests.schedules(cache.control, cache.topology.stamp, part) for part in parts)
        asked = {at: call.briefly() if briefly else call for at, call in enumerate(calls)}
        answers = yield Many(asked)
        if any(isinstance(answer, Stale) for _, answer in answers):
            yield from refresh(cache)  # raises, unless our engine was begun anew
            continue
        left = []
        for at, found in values(answers).items():
            result.now_ms = found.now_ms
            left += parts[at][found.looked_for :]
            for name, (state, declaration) in found.stored.items():
                entry = decode_entry(name, state, declaration)
                if isinstance(entry, Entry):
                    result.entries[name] = entry
                else:
                    result.unreadable[name] = entry
    return result


def read_all(cache: TopologyCache, *, briefly: bool = False) -> Operation[Found]:
    """Reads all schedules. Where there are none, one command says so."""
    names = requests.schedule_names(cache.control)
    return (yield from read(cache, (yield names.briefly() if briefly else names), briefly=briefly))


def _parts(names: list[str]) -> list[list[str]]:
    return [names[at : at + requests.BATCH] for at in range(0, len(names), requests.BATCH)]


@dataclass(slots=True)
class Written:
    """The result of writing states. Schedules that another process has changed meanwhile are in neither."""

    entries: dict[str, Entry] = field(default_factory=dict)  # name → the schedule as it is then
    errors: dict[str, ShardqError] = field(default_factory=dict)


def write(
    cache: TopologyCache, states: Mapping[str, tuple[Entry, State]], failed: Mapping[str, ShardqError] | None = None
) -> Operation[Written]:
    """Writes following states of schedules that were read. No news tell of them: these are written while occurrences
    are pushed, or taken back. ``failed``: errors by name, of others.
    """
    result = Written(errors=dict(failed or {}))
    following = {name: entry.following(state) for name, (entry, state) in states.items()}
    parts, asked = _parts(list(states)), {}
    for at, part in enumerate(parts):
        changes = [Change(name, states[name][0].stored, following[name].stored) for name in part]
        asked[at] = requests.set_schedule(cache.control, cache.topology.stamp, changes, tell=False)
    for at, written in (yield Many(asked)):
        if isinstance(written, ShardqError):
            result.errors |= dict.fromkeys(parts[at], written)
        else:
            result.entries |= {name: following[name] for name, done in zip(parts[at], written, strict=True) if done}
    return result


def push_ahead(cache: TopologyCache, entries: Sequence[Entry]) -> Operation[Written]:
    """Pushes the batches of these schedules."""
    failed = yield from _push(cache, entries)
    states = {
        entry.name: (entry, msgspec.structs.replace(entry.state, pushed=len(entry.state.batch)))
        for entry in entries
        if entry.name not in failed
    }
    return (yield from write(cache, states, failed))


def _push(cache: TopologyCache, entries: Sequence[Entry]) -> Operation[dict[str, ShardqError]]:
    """Returns errors by name."""
    names: dict[str, str] = {}
    words: list[Word] = []
    for entry in entries:
        declaration, seen_ms = entry.declaration, dedup_ms(entry, entry.state.batch)
        good_ms = declaration.expires_ms or (BEGUN_MS if declaration.catch_up == "none" else None)
        for occurrence in entry.state.batch[entry.state.pushed :]:
            id, due = entry.id_of(occurrence), entry.pushed_due(occurrence)
            record = declaration.record if good_ms is None else with_expiry(declaration.record, due + good_ms)
            names[id] = entry.name
            words += (id, max(due, 1), dated(cache, id, record), "keep", seen_ms)
    return {names[id]: error for id, error in (yield from _stored(cache, list(names), words)).items()}


def _stored(cache: TopologyCache, ids: list[str], words: list[Word]) -> Operation[dict[str, ShardqError]]:
    """Pushes packed tasks. Returns, by id, its own error of each that is not stored, or not known to be."""
    results = pushing.PushResults(ids)
    yield from pushing.complete(cache, _packer(), results, Entries(ids=ids, unique=words))
    return results.errors()


def dated(cache: TopologyCache, id: str, record: bytes) -> bytes:
    """The record of an occurrence, which says that it is pushed now, where ends are kept: its id does not say it."""
    return with_push(record, int(time.time())) if cache.topology.ends_age_ms(topic_of(id)) else record


def hold_back(cache: TopologyCache, entries: Iterable[Entry]) -> Operation[Written]:
    """Holds back what these schedules have to retract, and says so in their states."""
    entries = [entry for entry in entries if entry.state.retract]
    owners = {id: entry.name for entry in entries for id, _, _ in entry.state.retract}
    if not owners:
        return Written()
    held, failed = yield from _hold(cache, list(owners))
    errors = {owners[id]: error for id, error in failed.items()}
    states = {entry.name: (entry, entry.retracted(held)) for entry in entries if entry.name not in errors}
    return (yield from write(cache, states, errors))


def cancel_held(cache: TopologyCache, entries: Iterable[Entry]) -> Operation[Written]:
    """Cancels what these schedules have held back, and says so in their states."""
    entries = [entry for entry in entries if entry.state.held]
    owners = {id: entry.name for entry in entries for id in entry.state.held}
    makes = {id: partial(commands_by_id.cancelling, cache, id) for id in owners}
    outcomes = yield from commands_by_id.call_each(cache, makes)
    errors = {owners[id]: outcome for id, outcome in outcomes.items() if isinstance(outcome, ShardqError)}
    states = {
        entry.name: (entry, msgspec.structs.replace(entry.state, held=()))
        for entry in entries
        if entry.name not in errors
    }
    return (yield from write(cache, states, errors))


def _hold(cache: TopologyCache, ids: list[str]) -> Operation[tuple[set[str], dict[str, ShardqError]]]:
    """Returns the ids that are held back, and errors; the others ran, or are about to."""
    words: list[Word] = [word for id in ids for word in (id, MAX_AT_MS, _NOTHING, "keep", DAY_MS)]
    failed = yield from _stored(cache, ids, words)
    held, left = set[str](), [id for id in ids if id not in failed]
    for _ in range(_TRIES):
        makes = {id: partial(calls.reschedule, id=id, due=MAX_AT_MS) for id in left}
        left = []
        for id, outcome in (yield from commands_by_id.call_each(cache, makes)).items():
            if isinstance(outcome, ShardqError):
                failed[id] = outcome
            elif outcome is Outcome.MOVED:
                held.add(id)
            elif outcome is Outcome.UNKNOWN:
                left.append(id)  # an answer was lost: if that call has moved it, the next one does so again
        if not left:
            break
    failed |= {id: Unanswered(f"answers about {id!r} were lost again and again; repeat it") for id in left}
    return held, failed
