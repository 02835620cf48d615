"""The relay: moves committed rows from the outbox to the engine.

A step reads rows, pushes them, and removes them, in this order: a relay that dies in between leaves rows that are
pushed already, and the next one pushes them again. Those pushes are sent as after a lost answer, so a task that is
stored, or was pushed lately, counts as pushed; only such pushes are held against that memory. No row is lost and none
is pushed twice.

Several relays may work at once. Where the database can skip locked rows, each has rows of its own; elsewhere they
push the same rows, to the same effect.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from shardq.engine.base import EngineBase
from shardq.engine.stats import RelayStats
from shardq.engine.target import Target
from shardq.errors import BadInput, Conflict, PushError, ShardqError
from shardq.model.checks import check_seconds, duration_ms
from shardq.outbox.database import Waiting, open_database, said, waiting
from shardq.outbox.default import default_outbox
from shardq.outbox.notices import Notices, notices
from shardq.outbox.rows import BATCH, DEDUP_S, MAX_BATCH, entries_of
from shardq.outbox.tables import Outbox

if TYPE_CHECKING:
    from shardq.engine import AsyncEngine, Engine

log = logging.getLogger("shardq.outbox")

POLL_S = 0.2
"""Between two looks at a database that does not tell of new rows."""

LISTEN_S = 5.0
"""The same where it tells: a notice may be lost with its connection."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""After a failed step; each pause is twice as long as the one before."""

_READ = ("seq", "id", "due", "record", "on_conflict", "dedup", "created")

_SKIPPING = frozenset({"postgresql", "mysql", "mariadb", "oracle"})


class OutboxRelay:
    """Moves committed rows of an outbox to an engine; ``run()`` until ``stop()``, or ``start()`` in a thread.

    It has connections of its own, to the server of ``engine``, which may be an asyncio one and need not be open.

    >>> relay = shardq.outbox.OutboxRelay(engine, "postgresql+psycopg://app@db/shop")
    >>> relay.run()
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        database: str | sa.URL | sa.Engine,
        *,
        outbox: Outbox = default_outbox,
        batch: int = BATCH,
        keep: bool = False,
        dedup: float = DEDUP_S,
        poll: float = POLL_S,
    ) -> None:
        """``keep``: rows stay, with the time of their move, instead of being removed. ``dedup``: the seconds for which
        Redis remembers the push of a row. ``poll``: the seconds between two looks at a database that does not tell of
        new rows.
        """
        if not isinstance(engine, EngineBase):
            raise BadInput(f"a relay can't move rows to {engine!r:.80}; give an Engine or an AsyncEngine")
        if not isinstance(outbox, Outbox):
            raise BadInput(f"outbox can't be {outbox!r:.80}; give a shardq.outbox.Outbox, or leave it out")
        if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MAX_BATCH:
            raise BadInput(f"batch can't be {batch!r}; give a number of rows from 1 to {MAX_BATCH:,}")
        check_seconds(poll, "poll")
        self.engine = engine
        self.outbox = outbox
        self.moved = self.refused = self.failed = 0
        self.oldest_s = 0.0
        self.problem = ""
        self.listen_s = LISTEN_S
        """The seconds between two looks at a database that tells of new rows."""
        self._target = Target(engine.options)
        self._window_ms = duration_ms(dedup, "dedup")
        self._batch = batch
        self._keep = keep
        self._poll_s = poll
        self._own = not isinstance(database, sa.Engine)
        source = database if isinstance(database, sa.Engine) else open_database(database)
        self._skips = source.dialect.name in _SKIPPING
        # Stricter ones fail where relays and pushes meet, and no row needs them.
        self._database = source.execution_options(isolation_level="READ COMMITTED") if self._skips else source
        self._is_ours = False
        """True once the table is known to belong to the engine."""
        table = outbox.table
        select = (
            sa.select(*(table.c[name] for name in _READ))
            .where(table.c.moved.is_(None))
            .order_by(table.c.seq)
            .limit(batch)
        )
        self._select = select.with_for_update(skip_locked=True) if self._skips else select
        self._stopping = threading.Event()
        self._notices: Notices | None = None
        self._thread: threading.Thread | None = None
        engine.relays.add(self)

    def __repr__(self) -> str:
        state = "running" if self._notices else "stopped"
        return f"<OutboxRelay {self.outbox.table.fullname!r} -> {self.engine.name!r}: {state}, {self.moved} moved>"

    # ---- one step

    def step(self) -> int:
        """Moves up to a batch of rows. Returns their number. Raises what kept rows from being moved."""
        if not self._is_ours:
            with self._database.begin() as connection:
                self.outbox.assign(connection, self.engine)
            self._is_ours = True
        if self._skips:
            with self._database.begin() as connection:
                rows = connection.execute(self._select).all()
                done, failure = self._push(rows)
                self._remove(connection, done)
        else:
            with self._database.connect() as connection:
                rows = connection.execute(self._select).all()
            done, failure = self._push(rows)
            if done:
                with self._database.begin() as connection:
                    self._remove(connection, done)
        self.moved += len(done)
        if failure is not None:
            raise failure
        return len(done)

    def _push(self, rows: Sequence[Any]) -> tuple[list[int], ShardqError | None]:
        """Pushes rows. Returns the numbers of those that are done with, and what kept others from it."""
        if not rows:
            self.oldest_s = 0.0
            return [], None
        self.oldest_s = max(0.0, time.time() - min(row.created for row in rows) / 1000)
        kept: dict[str, ShardqError] = {}
        try:
            self._target.push(entries_of(rows, window_ms=self._window_ms))
        except PushError as exc:
            for id, error in exc.failed.items():
                if isinstance(error, Conflict):
                    self.refused += 1
                    log.warning("the task %s of the outbox was refused: %s", id, error, extra={"task_id": id})
                else:
                    kept[id] = error
            kept |= dict.fromkeys(exc.unknown, exc)
        except ShardqError as exc:
            kept = dict.fromkeys((row.id for row in rows), exc)
        done = [row.seq for row in rows if row.id not in kept]
        self.failed += len(rows) - len(done)
        return done, next(iter(kept.values()), None)

    def _remove(self, connection: sa.Connection, done: list[int]) -> None:
        if not done:
            return
        table = self.outbox.table
        chosen = table.c.seq.in_(done)
        if self._keep:
            connection.execute(table.update().where(chosen).values(moved=int(time.time() * 1000)))
        else:
            connection.execute(table.delete().where(chosen))

    # ---- the loop

    def run(self) -> None:
        """Moves rows until ``stop()`` is called. What fails is logged once, and tried again. It may be called again."""
        pause = FIRST_PAUSE_S
        self.engine.relays.add(self)
        try:
            while not self._stopping.is_set():
                try:
                    if self._notices is None:
                        self._notices = self._listen()
                    moved = self.step()
                except Exception as exc:  # noqa: BLE001  drivers raise errors of their own, and the loop goes on
                    self._forget_notices()
                    self._failed(exc)
                    self._stopping.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_S)
                    continue
                pause = FIRST_PAUSE_S
                self._worked()
                if moved < self._batch:
                    self._wait()
        finally:
            self.close()
            self._stopping.clear()

    def _listen(self) -> Notices:
        return notices(self._database, self.outbox.channel, self._stopping, poll_s=self._poll_s, listen_s=self.listen_s)

    def _wait(self) -> None:
        assert self._notices is not None, "made before the step"
        try:
            self._notices.wait()
        except Exception as exc:  # noqa: BLE001  the database's driver raises errors of its own
            log.info("the connection that listens for rows of the outbox was lost: %s", said(exc))
            self._forget_notices()

    def _failed(self, exc: Exception) -> None:
        problem = said(exc)
        if problem != self.problem:
            fields = {"error": type(exc).__name__}
            log.warning("rows of the outbox can't be moved, and are tried again: %s", problem, extra=fields)
        self.problem = problem

    def _worked(self) -> None:
        if self.problem:
            log.warning("rows of the outbox are moved again")
        self.problem = ""

    def stop(self) -> None:
        """Ends ``run`` after the present step, and waits for the thread of ``start()``. From any thread. ``start()``
        begins anew.
        """
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def start(self) -> None:
        """Runs in a thread of its own. It ends with ``stop()``."""
        if self._thread is not None and self._thread.is_alive():
            raise BadInput(f"{self!r} runs already; stop() it before you start it again")
        self._stopping.clear()
        self._thread = threading.Thread(target=self.run, name="shardq-outbox", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _forget_notices(self) -> None:
        listening, self._notices = self._notices, None
        if listening is not None:
            with contextlib.suppress(Exception):  # it is lost already
                listening.close()

    def close(self) -> None:
        """Closes its connections. ``run`` does so at its end; call it when ``step`` was called without ``run``."""
        self._forget_notices()
        self.engine.relays.discard(self)
        self._target.close()
        if self._own:
            self._database.dispose()

    # ---- for operators

    def stats(self) -> RelayStats:
        """The counters of this relay. ``engine.stats().relays`` has them too, until it is closed."""
        return RelayStats(
            table=str(self.outbox.table.fullname),
            moved=self.moved,
            refused=self.refused,
            failed=self.failed,
            oldest_s=self.oldest_s,
            problem=self.problem,
        )

    def waiting(self) -> Waiting:
        """How many rows wait to be moved, and since when the oldest does."""
        return waiting(self._database, self.outbox)
