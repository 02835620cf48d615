"""The beats of an outbox in its database, which ``witness`` compares with those of the shards; rows that were moved and
are kept; and what an operator decides when one of the two sides was restored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from shardq.core.layout.topology import Topology
from shardq.core.model.checks import now_ms
from shardq.errors import ShardqError
from shardq.relay.table import Outbox
from shardq.relay.witness import Beats, older_database

PAGE_ROWS = 1000  # rows that are changed together

_decode: Callable[[str], dict[int, int]] = msgspec.json.Decoder(dict[int, int]).decode


def clock_of(database: sa.Connection | sa.Engine) -> sa.ColumnElement[int]:
    """The clock of a database, in ms; that of this machine where the database is a file on it."""
    name = database.dialect.name
    if name == "postgresql":
        return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1000, sa.BigInteger)
    if name in ("mysql", "mariadb"):
        return sa.cast(sa.func.unix_timestamp(sa.func.now(3)) * 1000, sa.BigInteger)
    return sa.literal(now_ms(), sa.BigInteger)


class TableBeats:
    """The beats of one outbox, over a connection."""

    def __init__(self, connection: Callable[[], sa.Connection], outbox: Outbox) -> None:
        self.last: int = 0  # the last beat that was given out here
        self._connection = connection
        self._table, self._owner = outbox.table, outbox.owner

    def beats(self, *, lock: bool = False) -> Beats:
        """``lock``: until the transaction ends, where the database locks rows."""
        connection, column = self._connection(), self._owner.c
        select = sa.select(column.outbox, column.beat, column.shards, column.older, clock_of(connection))
        found = connection.execute(select.with_for_update() if lock else select).first()
        if found is None:
            raise ShardqError(f"the row of {self._owner.fullname} is gone, which names the engine of the outbox")
        outbox, last, shards, older, clock_ms = found
        back = _read(older)
        kept = sa.select(sa.func.count()).where(self._table.c.moved >= min(back.values(), default=0))
        count = connection.execute(kept).scalar_one() if back else 0
        return Beats(outbox, last, _read(shards), back, count, clock_ms)

    def missing(self) -> str:
        """Which shards came back older; empty if none did, or the row was deleted as the rows are to have another
        engine.
        """
        known = self._connection().execute(sa.select(self._owner.c.older)).scalar()
        return self.beats().missing if known else ""

    def give_out(self, found: Mapping[int, int], older: Mapping[int, int]) -> Beats:
        known = self.beats(lock=True)
        if (highest := max(found.values(), default=0)) > known.last:
            self._connection().rollback()
            raise older_database(known.last, highest)
        self.last = max(known.last + 1, known.clock_ms)
        values: dict[str, Any] = {"beat": self.last}
        if older:  # otherwise it stays: an operator may just have had the rows moved again
            lower = {shard: min(beat, known.older.get(shard, beat)) for shard, beat in older.items()}
            values["older"] = _written({**known.older, **lower})
        self._write(**values)
        self._connection().commit()
        return self.beats()

    def have(self, confirmed: Mapping[int, int], span: Collection[int]) -> None:
        known = self.beats(lock=True)
        shards = {shard: beat for shard, beat in known.shards.items() if shard in span}
        for shard, beat in confirmed.items():
            if beat <= known.last:  # otherwise the database came back older
                shards[shard] = max(beat, shards.get(shard, 0))
        self._write(shards=_written(shards))
        self._connection().commit()

    def _write(self, **values: Any) -> None:
        self._connection().execute(self._owner.update().values(**values))

    # ---- rows that were moved

    def forget(self, keep_ms: int) -> None:
        """Removes rows that were moved so long ago."""
        connection, column = self._connection(), self._table.c
        select = sa.select(column.seq).where(column.moved < clock_of(connection) - keep_ms)
        while seqs := connection.execute(select.order_by(column.moved).limit(PAGE_ROWS)).scalars().all():
            connection.execute(self._table.delete().where(column.seq.in_(seqs)))
            connection.commit()
        connection.rollback()

    def again(self, since_ms: int, topology: Topology) -> int:
        """Has relays move kept rows again that were moved since an instant: those whose ids may be in a shard that came
        back older, or all if none did. Returns their number.
        """
        connection, column, count, after = self._connection(), self._table.c, 0, 0
        older = self.beats().older.keys()
        select = sa.select(column.seq, column.id).where(column.moved >= since_ms).order_by(column.seq).limit(PAGE_ROWS)
        while rows := connection.execute(select.where(column.seq > after)).all():
            after = rows[-1].seq
            seqs = [row.seq for row in rows if not older or not older.isdisjoint(topology.homes(row.id))]
            connection.execute(self._table.update().where(column.seq.in_(seqs)).values(moved=None))
            connection.commit()
            count += len(seqs)
        self._write(older=None)
        connection.commit()
        return count

    # ---- a database that came back older

    def accept(self, highest: int, drop_before_ms: int | None) -> int:
        """Goes on from the highest beat of the shards. Rows that wait, and were stored before an instant, count as
        moved: None for no row. Returns their number.
        """
        connection, column, count = self._connection(), self._table.c, 0
        if drop_before_ms is not None:
            waits = (column.moved.is_(None), column.failed.is_(None), column.created < drop_before_ms)
            dropped = self._table.update().where(*waits).values(moved=clock_of(connection), claimed=None)
            count = int(connection.execute(dropped).rowcount)
        self._write(beat=sa.case((self._owner.c.beat < highest, highest), else_=self._owner.c.beat))
        connection.commit()
        return count


def _read(text: str | None) -> dict[int, int]:
    return _decode(text) if text else {}


def _written(shards: Mapping[int, int]) -> str | None:
    return msgspec.json.encode(shards).decode() if shards else None
