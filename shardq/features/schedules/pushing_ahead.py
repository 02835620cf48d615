"""Pushes occurrences that schedules' states intend, each once over the whole fleet. Called by ``known``.

The occurrences were written to the state before, where one dispatcher wins. They are pushed under ids made of their
instants; then the state says that they are. Who dies in between is followed by another, which finds them in the state
and pushes the same ids again: those count as pushed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shardq.core.calls.request import Word
from shardq.core.model.record import with_expiry
from shardq.core.operation import Operation
from shardq.core.producer import pushing
from shardq.core.producer.packing import BATCH, Entries, Packer
from shardq.core.topology_cache import TopologyCache
from shardq.errors import PushError, ShardqError
from shardq.features.schedules.entry import Entry
from shardq.features.schedules.planning import BEGUN_MS, dedup_ms
from shardq.features.schedules.storing import Written, write


def push_ahead(cache: TopologyCache, packer: Packer, entries: Sequence[Entry]) -> Operation[Written]:
    """Pushes the batches of these schedules."""
    failed = yield from _push(cache, packer, entries)
    states = {
        entry.name: (entry, msgspec.structs.replace(entry.state, pushed=len(entry.state.batch)))
        for entry in entries
        if entry.name not in failed
    }
    written = yield from write(cache, states)
    written.errors |= failed
    return written


def _push(cache: TopologyCache, packer: Packer, entries: Sequence[Entry]) -> Operation[dict[str, ShardqError]]:
    """Returns errors by name."""
    names: dict[str, str] = {}
    words: list[Word] = []
    for entry in entries:
        declaration, window_ms = entry.declaration, dedup_ms(entry, entry.state.batch)
        good_ms = declaration.expires_ms or (BEGUN_MS if declaration.catch_up == "none" else None)
        for occurrence in entry.state.batch[entry.state.pushed :]:
            id, due = entry.id_of(occurrence), entry.pushed_due(occurrence)
            record = declaration.record if good_ms is None else with_expiry(declaration.record, due + good_ms)
            names[id] = entry.name
            words += (id, max(due, 1), record, "keep", window_ms)
    try:
        yield from pushing.push(cache, packer, Entries(ids=list(names), unique=words), most=BATCH)
    except PushError as exc:
        errors: dict[str, ShardqError] = {names[id]: exc for id in exc.unknown}
        return errors | {names[id]: error for id, error in exc.failed.items()}
    return {}
