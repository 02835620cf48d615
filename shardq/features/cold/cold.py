"""The cold store of one engine in this process: its table, and which tasks go there. No request to Redis."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardq.core.calls.request import Word
from shardq.core.layout.lanes import beginning_of, lane_of
from shardq.core.layout.topology import ColdTable, Topology
from shardq.core.model.checks import check_topic, duration_ms, shown_instant
from shardq.core.model.ids import topic_of
from shardq.core.model.printable import quoted
from shardq.core.model.record import dated, has_head, undecoded
from shardq.core.producer.packing import FRESH, UNIQUE, Entries, Packer
from shardq.errors import InvalidOption, InvalidUrl, ShardqError
from shardq.features.cold.databases import open_store
from shardq.features.cold.ids import HOUR_MS, LAST_BUCKET, Place, Sequences, bucket_of, spelled
from shardq.features.cold.own import Push
from shardq.features.cold.report import ColdStats, LoaderReport
from shardq.features.cold.rows import LEAST_AFTER_S, Horizon, Row, tags_text
from shardq.features.cold.store import Counted, Store

DEFAULT_AFTER_S = 3600.0

IN_PARTITIONS = 400 * 24
"""Tasks of later buckets are found by their names: each day has a partition."""

CHUNK, CHUNK_BYTES = 5000, 4 << 20
"""The most rows that are added together, and bytes of their records."""


@dataclass(slots=True)
class Split:
    """The tasks of a push."""

    far: dict[str, Row] = field(default_factory=dict)
    """The id that was made for a task → its row."""
    own: list[Word] = field(default_factory=list)
    """The tasks under ids of the caller's own in a cold topic, far or near: words of ``push_unique``."""
    near: Entries = field(default_factory=Entries)
    """The other tasks."""


class Cold:
    """The table of one engine. Threads may share it."""

    def __init__(
        self, engine: str, url: str | os.PathLike[str], after_s: float | None, topics: frozenset[str] = frozenset()
    ) -> None:
        self.engine = engine
        self.given_after_s = after_s
        self.given_topics = topics
        self.store: Store = open_store(url_checked(url))
        self.store.horizon = Horizon(round((after_s or DEFAULT_AFTER_S) * 1000))
        self.table: ColdTable | None = None
        """The engine's entry of its table, once that is known to be this one."""
        self._sequences = Sequences()

    def asked(self, identity: str) -> ColdTable:
        """The table as this process would have it."""
        after = DEFAULT_AFTER_S if self.given_after_s is None else self.given_after_s
        return ColdTable(identity=identity, after=after, topics=tuple(sorted(self.given_topics)))

    def accept(self, table: ColdTable, identity: str) -> None:
        """Notes what the engine says. Raises InvalidUrl if that is of another table."""
        if table.identity != identity:
            raise InvalidUrl(
                f"the cold store {self.store.where} is not the one of the engine {quoted(self.engine)}, whose tasks "
                "wait in another database; give its URL, the same in every process"
            )
        self.store.horizon = Horizon(round(table.after * 1000))
        self.table = table

    def push_of(self, words: Sequence[Word]) -> Push:
        """A push under an id of the caller's own, which begins now."""
        return Push(words, math.ceil(self.store.now_ms), self._sequences.take(1)[0])

    def owns(self, id: str, topology: Topology | None) -> bool:
        """True for an id in a cold topic. ``topology``: the engine's, once it is known."""
        return topic_of(id) in self.given_topics or (topology is not None and topology.is_cold(id))

    def has_far(self, entries: Entries) -> bool:
        """True if some of these tasks are far, as far as this process knows the horizon."""
        now_ms, far_ms = self.store.now_ms, self.store.horizon.far_ms
        dues: Sequence[int] = entries.fresh[1::FRESH]  # type: ignore[assignment]  # due words
        if not dues:
            return False
        return max(dues) > now_ms + far_ms or -min(dues) > far_ms

    def split(self, entries: Entries, is_cold: Callable[[str], bool], packer: Packer) -> Split | None:
        """The tasks of a push that concern the table, and the others; None if none does. ``is_cold``: whether an id of
        the caller's own does. ``packer``: the one that packed them.
        """
        own = {id for id in map(str, entries.unique[::UNIQUE]) if is_cold(id)}
        if not own and not self.has_far(entries):
            return None
        split, began_ms = Split(near=Entries(keyed=entries.keyed)), math.ceil(self.store.now_ms)
        far_ms, last_ms = began_ms + self.store.horizon.far_ms, (LAST_BUCKET + 1) * HOUR_MS
        by_place = bucket_of(began_ms) + IN_PARTITIONS  # what is in later buckets is found by its name
        words: list[Any] = entries.fresh
        far, near = split.far, split.near.fresh
        seqs = self._sequences.take(len(words) // FRESH)
        for id, word, record, seq in zip(words[0::FRESH], words[1::FRESH], words[2::FRESH], seqs, strict=True):
            due = word if word > 0 else began_ms - word
            if far_ms < due < last_ms:
                bucket, topic, tags = due // HOUR_MS, topic_of(id), None
                if has_head(record):
                    record, tags = dated(record, began_ms), tags_text(undecoded(record).content.tags)
                named = bucket > by_place or lane_of(id) is not None
                name = spelled(beginning_of(id), Place(bucket, seq)) if named else ""
                far[id] = Row(bucket, seq, due, topic, tags, record, name)
            else:
                near += (id, word, record)
        for id, row in far.items() if packer.binds else ():
            far[id] = row._replace(record=packer.rebound(row.record, id, row.id))
        for at in range(0, len(entries.unique), UNIQUE) if own else ():
            some = split.own if entries.unique[at] in own else split.near.unique
            some += entries.unique[at : at + UNIQUE]
        if not own:
            split.near.unique = entries.unique
        split.near.ids = [id for id in entries.ids if id not in far and id not in own]
        return split if far or own else None

    def anew(self, rows: Collection[Row], packer: Packer) -> list[Row]:
        """Returns the tasks at other places: theirs were taken."""
        seqs = self._sequences.take(len(rows))
        others = [
            row._replace(seq=seq, name=row.name and spelled(row.beginning, Place(row.bucket, seq)))
            for row, seq in zip(rows, seqs, strict=True)
        ]
        return [
            row._replace(record=packer.rebound(row.record, former.id, row.id))
            for former, row in zip(rows, others, strict=True)
        ]


def stats_of(cold: Cold, counted: Counted | ShardqError | None, loader: LoaderReport | None) -> ColdStats:
    """Returns the statistics of a table, which was counted, or could not be."""
    problems = loader.problems if loader is not None else ()
    tasks, exact, at_least, first = None, True, False, None
    if isinstance(counted, Counted):
        tasks, exact, at_least = counted.rows, counted.exact, counted.at_least
        first = None if counted.first_bucket is None else shown_instant(counted.first_bucket * HOUR_MS)
    elif counted is not None and not problems:
        problems = (f"the cold store {cold.store.where} can't be read: {counted}",)
    return ColdStats(
        database=cold.store.where,
        after=cold.store.horizon.after_ms / 1000,
        topics=cold.table.topics if cold.table is not None else tuple(sorted(cold.given_topics)),
        tasks=tasks,
        exact=exact,
        at_least=at_least,
        first=first,
        loaded=loader.loaded if loader is not None else None,
        left=loader.left_s if loader is not None else None,
        problems=problems,
    )


def chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows that are added together."""
    begin = size = 0
    for at, row in enumerate(rows):
        if at > begin and (at - begin == CHUNK or size + len(row.record) > CHUNK_BYTES):
            yield rows[begin:at]
            begin, size = at, 0
        size += len(row.record)
    if rows:
        yield rows[begin:]


def url_checked(url: object) -> str:
    if not isinstance(url, str | os.PathLike) or not os.fspath(url):
        raise InvalidUrl(f"cold={quoted(url)} is not possible; give a URL of PostgreSQL, or the path of an SQLite file")
    where = os.fspath(url)
    if not isinstance(where, str):
        raise InvalidUrl(f"cold={quoted(url)} is not possible; give the path as text")
    return where


def after_checked(after: object) -> float | None:
    """The seconds of ``cold_after``; None where none were given."""
    if after is None:
        return None
    seconds = duration_ms(after, "cold_after") / 1000  # type: ignore[arg-type]  # it is checked there
    if seconds < LEAST_AFTER_S:
        raise InvalidOption(f"cold_after={quoted(after)} is not possible; give {LEAST_AFTER_S:g} seconds or more")
    return seconds


def topics_checked(topics: object) -> frozenset[str]:
    """The names of ``cold_topics``."""
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise InvalidOption(f'cold_topics={quoted(topics)} is not possible; give a list: cold_topics=["mail"]')
    names = list[str](topics)
    for name in names:
        check_topic(name)
    return frozenset(names)
