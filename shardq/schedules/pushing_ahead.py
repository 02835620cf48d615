"""Pushes occurrences ahead of their time, each once over the whole fleet. Called by ``scheduler``.

Three steps, for all schedules of a round together: the occurrences are written to each schedule's state, where one
dispatcher wins; they are pushed under ids made of their instants; the state says that they are. Who dies in between is
followed by another, which finds them in the state and pushes the same ids again: those count as pushed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from shardq.calls import schedules
from shardq.calls.request import Word
from shardq.errors import PushError, ShardqError
from shardq.model.record import with_expiry
from shardq.operation import Many, Operation
from shardq.producer import pushing
from shardq.producer.packing import BATCH, Entries, Packer
from shardq.schedules.entry import Entry, State, encode
from shardq.schedules.planning import BEGUN_MS, dedup_ms
from shardq.topology_cache import TopologyCache

FRESH_S = 30.0
"""The longest time from the look that found an occurrence unpushed to its push. A process that stood still for longer
looks again: by then the occurrence may have run, and its id may be forgotten.
"""


@dataclass(slots=True)
class Pushed:
    """The result of one round."""

    entries: dict[str, Entry] = field(default_factory=dict)
    """Name → the schedule after that. Those that somebody else changed meanwhile are not among them."""
    errors: dict[str, ShardqError] = field(default_factory=dict)
    """Name → the reason why its occurrences are not surely pushed."""
    count: int = 0
    """Occurrences that were pushed."""


def push_ahead(
    cache: TopologyCache,
    packer: Packer,
    intended: Mapping[str, tuple[Entry, State]],
    unpushed: Sequence[Entry],
    *,
    read_s: float,
) -> Operation[Pushed]:
    """``intended``: name → a schedule, and its state with the occurrences to push. ``unpushed``: schedules whose
    occurrences somebody has intended and maybe not pushed, as they were read at the monotonic time ``read_s``.
    """
    result = Pushed()
    ready = {entry.name: entry for entry in unpushed}
    calls = {
        name: schedules.set_schedule(cache.control, name, seen=entry.stored, state=encode(state), tell=False)
        for name, (entry, state) in intended.items()
    }
    for name, written in (yield Many(calls)):
        if isinstance(written, ShardqError):
            result.errors[name] = written
        elif written:
            entry, state = intended[name]
            ready[name] = result.entries[name] = replace(entry, state=state, stored=encode(state))
    if not ready or time.monotonic() - read_s > FRESH_S:
        return result
    failed = yield from _push(cache, packer, list(ready.values()))
    result.errors |= failed
    confirmed = {
        name: msgspec.structs.replace(entry.state, pushed=True) for name, entry in ready.items() if name not in failed
    }
    calls = {
        name: schedules.set_schedule(cache.control, name, seen=ready[name].stored, state=encode(state), tell=False)
        for name, state in confirmed.items()
    }
    for name, written in (yield Many(calls)):
        result.count += len(ready[name].state.batch)
        if isinstance(written, ShardqError):
            result.errors[name] = written
        elif written:
            state = confirmed[name]
            result.entries[name] = replace(ready[name], state=state, stored=encode(state))
        else:
            result.entries.pop(name, None)
    return result


def _push(cache: TopologyCache, packer: Packer, entries: Sequence[Entry]) -> Operation[dict[str, ShardqError]]:
    """Pushes the batches of these schedules. Returns errors by name."""
    names: dict[str, str] = {}
    words: list[Word] = []
    for entry in entries:
        declaration, window_ms = entry.declaration, dedup_ms(entry, entry.state.batch)
        for occurrence in entry.state.batch:
            id, due = entry.id_of(occurrence), entry.due(occurrence)
            record = declaration.record
            if declaration.catch_up == "none":
                record = with_expiry(record, due + BEGUN_MS)
            names[id] = entry.name
            words += (id, max(due, 1), record, "keep", window_ms)
    try:
        yield from pushing.push(cache, packer, Entries(ids=list(names), unique=words), most=BATCH)
    except PushError as exc:
        errors: dict[str, ShardqError] = {names[id]: exc for id in exc.unknown}
        return errors | {names[id]: error for id, error in exc.failed.items()}
    return {}
