"""The relay: a loop that moves committed rows from the outbox to the engine. ``relay/mover`` has its steps.

Several relays may work at once. Where the database can skip locked rows, each has rows of its own; on SQLite one works
at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from shardq.core.model.checks import duration_ms
from shardq.core.model.printable import quoted
from shardq.core.producer.packing import Packer
from shardq.core.threads import Loop
from shardq.engine.around import EngineAccess, EngineBase, RelayStats, Target
from shardq.errors import BadInput, ShardqError
from shardq.outbox.rows import BATCH, DEDUP_S, KEEP_S, MAX_BATCH
from shardq.relay.confirming import TOLD_S
from shardq.relay.database import Waiting, open_database, said, waiting
from shardq.relay.mover import LONGEST_PAUSE_S, Mover
from shardq.relay.sending import FAR, KEYED, cause_of
from shardq.relay.table import Outbox, default_outbox
from shardq.relay.table_rows import CLAIM_S, TableRows, log
from shardq.relay.witness import Witness

if TYPE_CHECKING:
    from shardq import AsyncEngine, Engine

POLL_S = 0.2  # between two looks at a database that does not tell of new rows
LISTEN_S = 5.0  # the same where it tells: a notice may be lost with its connection
CLOSE_S = 3.0  # how long a relay that is closed waits for the servers to confirm what was sent
SLICE_S = 0.5  # how long a relay that listens takes to notice that it is to stop


class Notices:
    """The wait for new rows: by LISTEN on a connection of its own, if the database is PostgreSQL and its driver psycopg
    (others can't wait for notices plainly); else for POLL_S.
    """

    def __init__(self, database: sa.Engine, channel: str, stopping: threading.Event, *, listen_s: float) -> None:
        self._stopping = stopping
        self._connection: Any = None
        self._most_s = POLL_S
        if database.dialect.name == "postgresql" and database.dialect.driver == "psycopg":
            self._most_s = listen_s
            pooled = database.raw_connection()
            self._connection = pooled.driver_connection
            pooled.detach()  # it listens from now on, so it does not return to the pool
            try:
                self._connection.autocommit = True
                self._connection.execute(f'LISTEN "{channel}"')
            except BaseException:
                self.close()
                raise

    def wait(self, most_s: float) -> None:
        """Returns when there may be new rows, when the relay is to stop, and at the latest after so many seconds."""
        until = time.monotonic() + min(self._most_s, most_s)
        if self._connection is None:
            self._stopping.wait(until - time.monotonic())
            return
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            for _ in self._connection.notifies(timeout=min(left, SLICE_S), stop_after=1):
                return

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


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
        keep: float = KEEP_S,
        dedup: float = DEDUP_S,
    ) -> None:
        """``keep``: the seconds for which moved rows stay, with the time of their move, so that they can be moved again
        if Redis is restored from an older snapshot; 0 removes them at once. ``dedup``: the seconds for which Redis
        remembers the push of a row.
        """
        if not isinstance(engine, EngineBase):
            raise BadInput(f"a relay can't move rows to {engine!r:.80}; give an Engine or an AsyncEngine")
        if not isinstance(outbox, Outbox):
            raise BadInput(f"outbox can't be {quoted(outbox)}; give a shardq.outbox.Outbox, or leave it out")
        if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MAX_BATCH:
            raise BadInput(f"batch can't be {quoted(batch)}; give a number of rows from 1 to {MAX_BATCH:,}")
        self.engine = engine
        self.outbox = outbox
        self.problem: str = ""
        self.listen_s = LISTEN_S
        """The seconds between two looks at a database that tells of new rows."""
        dedup_ms = duration_ms(dedup, "dedup")
        keep_ms = duration_ms(keep, "keep") if keep else 0
        self._own = not isinstance(database, sa.Engine)
        self._database = database if isinstance(database, sa.Engine) else open_database(database)
        self._is_started = False
        self._is_ours = False  # true once the table is known to belong to the engine
        self._rows = TableRows(self._database, outbox, batch=batch, keep_ms=keep_ms, memory_ms=dedup_ms)
        self._witness = Witness(self._rows.beats, log)
        options = EngineAccess(engine).options
        self._mover = Mover(
            self._rows,
            Packer(options.codec, max_payload=options.max_payload),
            lambda: Target(EngineAccess(engine).options, EngineAccess(engine).factory.driver),
            log,
            timeout=options.timeout,
            has_threads=lambda: EngineAccess(engine).factory.has_threads,
            elsewhere=lambda packer, servers: EngineAccess(engine).far_relaying(packer, servers.opened),
            witness=self._witness,
        )
        self._causes: set[str] = set()
        """The problems that the log has said since rows were last moved without a problem."""
        self._notices: Notices | None = None
        self._loop = self._new_loop()
        EngineAccess(engine).running.relays.add(self)

    def __repr__(self) -> str:
        state = "running" if self._notices else "stopped"
        return f"<OutboxRelay {self.outbox.table.fullname!r} -> {self.engine.name!r}: {state}, {self.moved} moved>"

    @property
    def moved(self) -> int:
        """The rows that were moved."""
        return self._rows.moved

    @property
    def refused(self) -> int:
        """Moved rows whose id was taken, with ``on_conflict="reject"``."""
        return self._rows.refusals

    def step(self) -> int:
        """Moves up to a batch of rows, and waits until the servers' replicas and disks have what they did. Returns the
        number of rows that have left. Raises what kept rows from that, if none has.
        """
        self._check_owner()
        before = self._rows.moved
        self._mover.probe_now()
        self._mover.step()
        self._mover.confirm()
        moved = self._rows.moved - before
        if not moved and self._mover.stuck:
            raise next(iter(self._mover.stuck.values())).error
        if not moved and (behind := self._mover.confirming.late()) is not None:
            raise behind
        return moved

    def _check_owner(self) -> None:
        if not self._is_ours and not EngineAccess(self.engine).factory.is_of_test:
            with self._database.begin() as connection:
                self.outbox.assign(connection, self.engine)
            self._is_ours = True

    # ---- the loop

    def run(self) -> None:
        """Moves rows until ``stop()`` is called. What fails is logged once, and tried again. It may be called again."""
        EngineAccess(self.engine).running.relays.add(self)
        try:
            self._loop.run()
        finally:
            self._loop = self._new_loop()

    def _new_loop(self) -> Loop:
        return Loop(
            "shardq-outbox",
            self._round,
            log,
            fails="rows of the outbox can't be moved, and are tried again",
            works="rows of the outbox are moved again",
            failed=self._failed,
            ended=self.close,
            longest_pause_s=LONGEST_PAUSE_S,
        )

    def _round(self) -> float:
        if self._notices is None:
            stopping = self._loop.stopping
            self._notices = Notices(self._database, self.outbox.channel, stopping, listen_s=self.listen_s)
        self._check_owner()
        wait = self._mover.step()
        self._judge()
        if wait:
            self._wait(wait)
        return 0.0

    def _wait(self, most_s: float) -> None:
        assert self._notices is not None, "made before the step"
        try:
            self._notices.wait(most_s)
        except Exception as exc:  # noqa: BLE001  the database's driver raises errors of its own
            log.info("the connection that listens for rows of the outbox was lost: %s", said(exc))
            self._forget_notices()

    def _judge(self) -> None:
        """Says which shards take nothing, and which row waits for them first."""
        by_cause: defaultdict[str, list[int]] = defaultdict(list)
        for shard, stuck in sorted(self._mover.stuck.items()):
            by_cause[cause_of(stuck.error)].append(shard)
        texts = []
        for shards in by_cause.values():
            first = min((self._mover.stuck[shard] for shard in shards), key=lambda stuck: stuck.seq)
            named = _named(shards)
            texts.append(f"those for {named} wait, first row {first.seq} (id {first.id}): {first.error}")
        causes = set(by_cause)
        if (behind := self._mover.confirming.late(TOLD_S, but=self._mover.stuck)) is not None:
            texts.append(str(behind))
            causes.add("behind")
        self._tell("; ".join(texts), causes)

    def _failed(self, exc: BaseException) -> bool:
        self._forget_notices()
        self._witness.doubt()
        self._is_ours = False
        self._tell(said(exc), {cause_of(exc)})
        return True

    def _tell(self, problem: str, causes: set[str]) -> None:
        """Logs a cause once, and the end of all."""
        if causes - self._causes:
            log.warning("rows of the outbox can't be moved, and are tried again: %s", problem)
        elif self._causes and not causes:
            log.warning("rows of the outbox are moved again")
        self.problem = problem
        self._causes = self._causes | causes if causes else set()

    def stop(self) -> None:
        """Ends ``run`` after the present step, and waits for the thread of ``start()``. From any thread. ``start()``
        begins anew.
        """
        self._loop.stop()
        if self._is_started and not EngineAccess(self.engine).factory.has_threads:
            self.close()
        self._is_started = False
        self._loop.join()
        if self._loop.thread is not None:
            self._loop = self._new_loop()

    def start(self) -> None:
        """Runs in a thread of its own. It ends with ``stop()``."""
        if self._loop.is_alive:
            raise BadInput(f"{self!r} runs already; stop() it before you start it again")
        self._loop = self._new_loop()
        EngineAccess(self.engine).running.relays.add(self)
        self._is_started = True
        if not EngineAccess(self.engine).factory.has_threads:
            return  # the clock of a test says when: catch_up()
        self._loop.start()

    def catch_up(self) -> None:
        """Moves all rows that wait, if the relay was started where no threads run: under the clock of a test.

        >>> relay.catch_up()
        """
        while self._is_started and not EngineAccess(self.engine).factory.has_threads and self.step():
            pass

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
        EngineAccess(self.engine).running.relays.discard(self)
        self._finish()
        if self._own:
            self._database.dispose()

    def _finish(self) -> None:
        """Gives the servers a moment to confirm what was sent, and gives up its claims."""
        if not self._mover.is_used:
            return
        try:
            if self._mover.is_waiting:
                self._mover.confirm(CLOSE_S)
                self._rows.end()
            self._mover.last_beat()
        except (sa.exc.SQLAlchemyError, ShardqError) as exc:
            log.info("the rows that were sent and are not confirmed keep their claims for %g s: %s", CLAIM_S, exc)
        finally:
            self._mover.forget()

    # ---- for operators

    def stats(self) -> RelayStats:
        """The counters of this relay. ``engine.stats().relays`` has them too, until it is closed."""
        return RelayStats(
            table=str(self.outbox.table.fullname),
            moved=self.moved,
            refused=self.refused,
            retried=self._mover.claiming.retried + self._rows.tried,
            failed=self._rows.failed,
            sent=self._mover.unconfirmed,
            unconfirmed=self._mover.confirming.denied,
            oldest_s=self._mover.oldest_s,
            missing=self._witness.missing,
            problem=self.problem,
        )

    def waiting(self) -> Waiting:
        """How many rows wait to be moved, and since when the oldest does."""
        return waiting(self._database, self.outbox)


def _named(shards: Sequence[int]) -> str:
    """Shards in a sentence; ``FAR`` is the far store, ``KEYED`` tasks with keys."""
    numbers = [str(shard) for shard in shards if shard not in (FAR, KEYED)]
    names = [f"shard{'s' * (len(numbers) > 1)} {', '.join(numbers)}"] if numbers else []
    return " and ".join(names + ["the far store"] * (FAR in shards) + ["tasks with keys"] * (KEYED in shards))
