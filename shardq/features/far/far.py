"""The far store of one engine in this process: its table, and which tasks go there. No request to Redis."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from shardq.core.model.checks import duration_ms, shown_instant
from shardq.core.model.ids import UNIQUE_LENGTH
from shardq.core.model.printable import quoted
from shardq.core.model.record import dated, has_head, undecoded
from shardq.core.producer.packing import FRESH, Entries, Packer
from shardq.errors import InvalidOption, InvalidUrl, ShardqError
from shardq.features.far.report import FarStats, LoaderReport
from shardq.features.far.rows import LAST_MS, LEAST_AHEAD_S, Horizon, Row, far_id, tags_text
from shardq.features.far.store import Counted, Store

log: logging.Logger = logging.getLogger("shardq.far")

DEFAULT_AHEAD_S = 3600.0

CHUNK, CHUNK_BYTES = 5000, 4 << 20
"""The most rows that are added together, and bytes of their records."""


@dataclass(slots=True)
class Split:
    """The tasks of a push."""

    far: dict[str, Row] = field(default_factory=dict)
    """The id that was made for a task → its row."""
    near: Entries = field(default_factory=Entries)
    """The other tasks."""


class Far:
    """The table of one engine. Threads may share it."""

    def __init__(self, engine: str, url: str | os.PathLike[str], ahead_s: float | None) -> None:
        self.engine = engine
        self.given_ahead_s = ahead_s
        self.store: Store = open_store(url_checked(url))
        self.store.horizon = Horizon(round((ahead_s or DEFAULT_AHEAD_S) * 1000))
        self.is_ours: bool = False
        """True once the table is known to be the engine's."""

    def opened(self, deadline: float) -> str:
        """Opens the table. Returns its identity."""
        owner = self.store.open(self.engine, self.given_ahead_s or DEFAULT_AHEAD_S, deadline)
        if self.given_ahead_s not in (None, owner.ahead):
            log.warning(
                "ahead=%g of this program is not used: the engine has %g, and `shardq far ahead` changes it",
                self.given_ahead_s,
                owner.ahead,
            )
        return owner.identity

    def accept(self, identity: str, linked: str) -> None:
        """Notes that the engine has the table of this identity. Raises InvalidUrl if it has another one."""
        if linked != identity:
            raise InvalidUrl(
                f"the far store {self.store.where} is not the one of the engine {quoted(self.engine)}, whose tasks "
                "wait in another database; give its URL, the same in every process"
            )
        self.is_ours = True

    def has_far(self, entries: Entries) -> bool:
        """True if some of these tasks are far, as far as this process knows the horizon."""
        now_ms, far_ms = self.store.now_ms, self.store.horizon.far_ms
        dues: Sequence[int] = entries.fresh[1::FRESH]  # type: ignore[assignment]  # due words
        if not dues:
            return False
        return max(dues) > now_ms + far_ms or -min(dues) > far_ms

    def split(self, entries: Entries, packer: Packer) -> Split | None:
        """The tasks of a push that are for the table, and the others; None if none is. ``packer``: the one that packed
        them.
        """
        if not self.has_far(entries):
            return None
        split, began_ms = Split(near=Entries(keyed=entries.keyed)), math.ceil(self.store.now_ms)
        far_ms, words = began_ms + self.store.horizon.far_ms, list[Any](entries.fresh)
        far, near = split.far, split.near.fresh
        for id, word, record in zip(words[0::FRESH], words[1::FRESH], words[2::FRESH], strict=True):
            due, tags = word if word > 0 else began_ms - word, None
            if far_ms < due < LAST_MS:
                if has_head(record):
                    record, tags = dated(record, began_ms), tags_text(undecoded(record).content.tags)
                far[id] = Row(far_id(id), due, tags, record)
            else:
                near += (id, word, record)
        for id, row in far.items() if packer.binds else ():
            far[id] = row._replace(record=packer.rebound(row.record, id, row.id))
        split.near.unique = entries.unique
        split.near.ids = [id for id in entries.ids if id not in far]
        return split if far else None


def anew(rows: Collection[Row], packer: Packer) -> list[Row]:
    """Returns the tasks under other ids: theirs were taken."""
    again = [(row, far_id(packer.new_id(row.id[:-UNIQUE_LENGTH]))) for row in rows]
    return [row._replace(id=id, record=packer.rebound(row.record, row.id, id)) for row, id in again]


def stats_of(far: Far, counted: Counted | ShardqError | None, loader: LoaderReport | None) -> FarStats:
    """Returns the statistics of a table, which was counted, or could not be."""
    problems = loader.problems if loader is not None else (far.store.halted,) if far.store.halted else ()
    tasks, exact, at_least, first = None, True, False, None
    if isinstance(counted, Counted):
        tasks, exact, at_least = counted.rows, counted.exact, counted.at_least
        first = None if counted.first_ms is None else shown_instant(counted.first_ms)
    elif counted is not None and not problems:
        problems = (f"the far store {far.store.where} can't be read: {counted}",)
    return FarStats(
        database=far.store.where,
        ahead=far.store.horizon.ahead_ms / 1000,
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


def open_store(url: str) -> Store:
    """The store of a URL: ``postgresql://…``, ``sqlite:///path``, or a file's path. It connects when it is used."""
    scheme = url.partition("://")[0].partition("+")[0] if "://" in url else ""
    if scheme in ("postgresql", "postgres"):
        from shardq.features.far.postgres import PostgresStore  # here: it needs psycopg

        return PostgresStore(url)
    from shardq.features.far.sqlite import SqliteStore  # here: it brings sqlite3

    if scheme == "sqlite":
        path = unquote(url.partition(":///")[2])
        if not path:
            raise InvalidUrl(f"far={quoted(url)} names no file; write sqlite:////absolute/path, or the path alone")
        return SqliteStore(path)
    if scheme:
        raise InvalidUrl(
            f"far= can't be a URL of the kind {quoted(scheme)}; give postgresql://user@host/database, or the path of "
            "an SQLite file"
        )
    return SqliteStore(url)


def url_checked(url: object) -> str:
    if not isinstance(url, str | os.PathLike) or not os.fspath(url):
        raise InvalidUrl(f"far={quoted(url)} is not possible; give a URL of PostgreSQL, or the path of an SQLite file")
    where = os.fspath(url)
    if not isinstance(where, str):
        raise InvalidUrl(f"far={quoted(url)} is not possible; give the path as text")
    return where


def ahead_checked(ahead: object) -> float | None:
    """The seconds of ``ahead``; None where none were given."""
    if ahead is None:
        return None
    seconds = duration_ms(ahead, "ahead") / 1000  # type: ignore[arg-type]  # it is checked there
    if seconds < LEAST_AHEAD_S:
        raise InvalidOption(f"ahead={quoted(ahead)} is not possible; give {LEAST_AHEAD_S:g} seconds or more")
    return seconds
