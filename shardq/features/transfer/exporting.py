"""Makes the lines of an export: the settings, the schedules, every task that matches, and the dedup windows.
Operations, for both drivers.

**A task that waits throughout is in the export**, also while tasks change their states, and while shards are added or
removed: records are scanned, which stay in their places through all changes of state, and ``Walk`` visits each shard
before those to which its tasks may go. What is done or pushed meanwhile may be in it or not; a task that moves may be
in it twice, and an import keeps the first. Each call to a shard takes a millisecond or two of it.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from shardq.core.calls import by_id, resharding
from shardq.core.calls.request import FIRST_PAGE, next_page
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import key_of
from shardq.core.layout.topology import TopicSettings
from shardq.core.layout.words import is_foreign
from shardq.core.model.checks import shown_instant
from shardq.core.model.ids import topic_of
from shardq.core.model.record import undecoded
from shardq.core.model.task import TaskInfo
from shardq.core.operation import Operation, values
from shardq.core.producer.commands_by_id import info_of
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import Make, call_shards
from shardq.errors import AccessDenied
from shardq.features.listing import line, pages
from shardq.features.listing.bulk import Walk
from shardq.features.listing.query import STATES, Query
from shardq.features.schedules.entry import encode
from shardq.features.schedules.pushing_ahead import read_all
from shardq.features.transfer.lines import EndLine, HeadLine, ScheduleLine, SeenLine, TopicLine

PAGE = 500
"""Tasks read by one call: a millisecond or two of a server."""

AT_ONCE = 8
"""Shards that are read together."""

_encode = msgspec.json.Encoder().encode


class Export:
    """The lines of one engine, page by page."""

    def __init__(self, cache: TopologyCache, query: Query, *, secrets: bool = False) -> None:
        self._cache = cache
        self._query = query
        self._secrets = secrets
        self._pages = self._made()
        self.tasks: int = 0
        """The tasks so far."""

    def following(self) -> Operation[list[bytes] | None]:
        """The lines of the next page; None at the end."""
        make = next(self._pages, None)
        return None if make is None else (yield from make)

    def _made(self) -> Iterator[Operation[list[bytes]]]:
        yield self._head()
        walk = _Scan(self._cache)
        while not walk.is_over:
            yield self._tasks(walk)
        # what is exported by state has no windows of tasks that are gone
        query = self._query
        if query.states == STATES and query.tag is None and not query.failed:
            seen = _Seen(self._cache)
            while not seen.is_over:
                yield self._seen(seen)
        yield self._end()

    # ---- before the tasks

    def _head(self) -> Operation[list[bytes]]:
        yield from self._check_reader()
        topology, query = self._cache.topology, self._query
        head = HeadLine(
            engine=self._cache.name, at=dt.datetime.now(dt.UTC), settings=msgspec.structs.asdict(topology.settings)
        )
        lines: list[Any] = [head]
        for topic, settings in sorted(topology.topics.items()):
            if query.topic in (None, topic):
                lines.append(self._topic(topic, settings))
        found = yield from read_all(self._cache)
        for name, entry in sorted(found.entries.items()):
            if (
                entry.is_listed
                and query.topic in (None, entry.declaration.topic)
                and query.key in (None, entry.declaration.key)
            ):
                declaration = msgspec.Raw(encode(entry.declaration))
                lines.append(ScheduleLine(schedule=name, declaration=declaration, progress=msgspec.Raw(entry.stored)))
        return [_encode(each) + b"\n" for each in lines]

    def _check_reader(self) -> Operation[None]:
        """Raises AccessDenied if the user may not read all: what is read last is asked for first."""
        try:
            yield resharding.scan(self._cache.keys(0), self._cache.keys(0).seen, "0", count=1)
        except AccessDenied as exc:
            raise AccessDenied(
                f"an export is for users of the role operator, dispatcher or viewer (`shardq acl`): {exc}"
            ) from exc

    def _topic(self, topic: str, settings: TopicSettings) -> TopicLine:
        """The settings in the words of ``configure``."""
        words: dict[str, Any] = {}
        hidden = None
        if settings.limit is not None:
            words |= {
                name: value for name, value in msgspec.structs.asdict(settings.limit).items() if value is not None
            }
        if (route := settings.route) is not None:
            if route.shown == route.to or self._secrets:
                words |= {"forward": route.to}
                words |= {"side": route.side} if route.side != "right" else {}
                words |= {"maxlen": route.maxlen} if route.maxlen is not None else {}
            else:
                hidden = route.shown
        if settings.paused:
            words["pause"] = shown_instant(settings.paused_until) if settings.paused_until else True
        return TopicLine(topic=topic, settings=words, without_secrets=hidden)

    # ---- the tasks

    def _tasks(self, scan: _Scan) -> Operation[list[bytes]]:
        query = self._query
        read: dict[ShardKeys, list[str]] = {}
        for keys, ids in (yield from scan.following()).items():
            if query.topic is not None:
                ids = [id for id in ids if topic_of(id) == query.topic]
            if query.key is not None:
                ids = [id for id in ids if key_of(id) == query.key]
            read[keys] = [id for id in ids if not is_foreign(id)]
        lines: list[bytes] = []
        while left := {keys: ids for keys, ids in read.items() if ids}:
            makes = {keys: (keys, partial(by_id.get_many, ids=ids[:PAGE])) for keys, ids in left.items()}
            for keys, found in values((yield from call_shards(self._cache, makes)).items()).items():
                ids = read[keys]
                for id, task in zip(ids, found, strict=False):
                    # what is moving is met where it goes
                    if isinstance(task, by_id.Found):
                        info = info_of(id, task, undecoded(task.record))
                        if self._matches(info):
                            lines.append(_encode(line.task(_as_ready(info))) + b"\n")
                read[keys] = ids[len(found) :]
        self.tasks += len(lines)
        return lines

    def _matches(self, info: TaskInfo) -> bool:
        query = self._query
        if info.state not in query.states:
            return False
        if query.tag is not None and query.tag not in info.tags:
            return False
        if query.failed and not info.failures:
            return False
        if query.begin_ms is None and query.end_ms is None:
            return True
        if info.due is None:
            return False
        begin, end = query.begin_ms, query.end_ms
        return (begin is None or info.due >= shown_instant(begin)) and (end is None or info.due < shown_instant(end))

    # ---- behind the tasks

    def _seen(self, seen: _Seen) -> Operation[list[bytes]]:
        query = self._query
        found = yield from seen.following()
        return [
            _encode(SeenLine(seen=id, until=shown_instant(until_ms))) + b"\n"
            for id, until_ms in found.items()
            if query.topic in (None, topic_of(id)) and query.key in (None, key_of(id))
        ]

    def _end(self) -> Operation[list[bytes]]:
        yield from ()
        return [_encode(EndLine(tasks=self.tasks)) + b"\n"]


def _as_ready(info: TaskInfo) -> TaskInfo:
    """A leased task as it is once its lease has ended."""
    if info.state != "leased":
        return info
    return msgspec.structs.replace(info, state="ready", deadline=None, holder=None)


class _Scan:
    """The ids of all records, a page of some shards at a time."""

    def __init__(self, cache: TopologyCache) -> None:
        self._cache = cache
        self._walk = Walk(cache)
        self._cursors: dict[ShardKeys, str] = {}
        self._left: list[ShardKeys] = []
        self._size = FIRST_PAGE
        self.is_over: bool = False

    def following(self) -> Operation[dict[ShardKeys, list[str]]]:
        # while tasks move, one shard after the other, in the direction in which they do
        most = 1 if self._cache.topology.priors or self._cache.topology.pending else AT_ONCE
        while len(self._cursors) < most:
            keys = yield from self._walk.following(self._left.pop() if self._left else None)
            if keys is None:
                # the number of shards may change until the last of them is read: it is asked for again then
                self.is_over = not self._cursors
                break
            self._cursors[keys] = "0"
        makes: dict[ShardKeys, tuple[ShardKeys, Make[resharding.RecordPage]]] = {
            keys: (keys, partial(resharding.stock, cursor=cursor, count=self._size))
            for keys, cursor in self._cursors.items()
        }
        found: dict[ShardKeys, list[str]] = {}
        read = 0
        for keys, page in values((yield from call_shards(self._cache, makes)).items()).items():
            found[keys] = page.ids
            read = max(read, page.bytes)
            self._cursors[keys] = page.cursor
            if page.cursor == "0":
                del self._cursors[keys]
                self._left.append(keys)
        self._size = next_page(self._size, read, most=PAGE)
        return found


class _Seen:
    """The dedup windows that are open, shard by shard."""

    def __init__(self, cache: TopologyCache) -> None:
        self._cache = cache
        self._walk = Walk(cache)
        self._keys: ShardKeys | None = None
        self._cursor = "0"
        self._ahead_ms = 0
        self._now_ms: int | None = None
        self.is_over: bool = False

    def following(self) -> Operation[dict[str, int]]:
        """Id → the end of its window by the server's clock, in ms."""
        if self._cursor == "0":
            self._keys = yield from self._walk.following(self._keys)
            if self._keys is None:
                self.is_over = True
                return {}
            if self._now_ms is None:
                self._now_ms = yield from pages.server_now(self._cache)
            self._ahead_ms = yield resharding.ahead(self._keys)
        assert self._keys is not None, "a shard is read"
        assert self._now_ms is not None, "the clock was read"
        self._cursor, found = yield resharding.scan(self._keys, self._keys.seen, self._cursor, count=PAGE)
        # with a line feed it is known to resends only
        ends = {id: math.ceil(float(end)) - self._ahead_ms for id, end in found.items() if "\n" not in id}
        return {id: end for id, end in ends.items() if end > self._now_ms and not is_foreign(id)}
