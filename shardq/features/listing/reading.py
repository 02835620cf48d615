"""Reads the tasks of a page: their records, of about 1 MiB a shard at most. Operations, for both drivers."""

from __future__ import annotations

import contextlib
from functools import partial

from shardq.core.calls import by_id
from shardq.core.calls.by_id import Found
from shardq.core.calls.request import Moving
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.record import Codec, Decoded, decode_record
from shardq.core.model.task import TaskInfo
from shardq.core.operation import Operation, values
from shardq.core.producer.by_id import find_and_call, info_of
from shardq.core.recovery import call_shards
from shardq.core.topology_cache import TopologyCache
from shardq.errors import AccessDenied, PayloadNotDecodable
from shardq.features.listing import pages
from shardq.features.listing.pages import Entry
from shardq.features.listing.query import Query, TaskPage


def task_page(cache: TopologyCache, query: Query, cursor: str | None, limit: int, codec: Codec) -> Operation[TaskPage]:
    """Reads the page of a cursor."""
    entries, place = yield from pages.following(cache, query, query.place(cache.name, cursor), limit)
    stored = yield from _stored(cache, entries)
    tasks: list[TaskInfo] = []
    for number, entry in enumerate(entries):
        if entry.id not in stored:  # the records before it are all that one page may have; there is one at least
            place = entries[number - 1].place
            break
        task = stored[entry.id]
        if task is not None and _is_still(task, entry):
            tasks.append(info_of(entry.id, task, _decoded(task, codec)))
    return TaskPage(tasks, query.cursor(cache.name, place))


def _stored(cache: TopologyCache, entries: list[Entry]) -> Operation[dict[str, Found | None]]:
    """The tasks as they are now; of each shard the first ones only, where they are large."""
    by_shard: dict[ShardKeys, list[str]] = {}
    for entry in entries:
        by_shard.setdefault(entry.keys, []).append(entry.id)
    requests = {keys: (keys, partial(by_id.get_many, ids=ids)) for keys, ids in by_shard.items()}
    answers = values((yield from call_shards(cache, requests)).items())
    stored: dict[str, Found | None] = {}
    for keys, tasks in answers.items():
        for id, task in zip(by_shard[keys], tasks, strict=False):
            if isinstance(task, Moving) or (task is None and cache.topology.priors):
                # on its way to another shard, or there already; a user that may only look can't bring it in
                with contextlib.suppress(AccessDenied):
                    task = yield from find_and_call(
                        cache, id, partial(by_id.get, id=id), absent=lambda found: found is None
                    )
            if isinstance(task, Moving):
                task = None
            stored[id] = task
    return stored


def _is_still(task: Found, entry: Entry) -> bool:
    """True if the task is where the page found it: one that was rescheduled meanwhile is listed at its new place."""
    return task.state == entry.place.state and (task.state in ("ready", "leased") or task.instant_ms == entry.place.at)


def _decoded(task: Found, codec: Codec) -> Decoded:
    try:
        return decode_record(task.record, own=codec)
    except PayloadNotDecodable:
        # often the very reason of its death: it must still be listed
        return Decoded(None, {}, None, "")
