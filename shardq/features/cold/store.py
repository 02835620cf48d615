"""The table of tasks that are far away: its rows by id, in pages, and in numbers. What differs between databases is in
``postgres.py`` and ``sqlite.py``; all statements are in ``statements.py``.

Threads may share a store. Every call ends at its deadline. ``Unavailable`` says that the database could not be asked,
or can't do it, and that nothing was done; so do ``ReadOnly`` and ``AccessDenied``. ``Unanswered`` says that what was
sent may have been done, and ``ServerFault`` itself that a row is refused for what is in it.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from shardq.core import forks
from shardq.core.layout.lanes import lane_of
from shardq.core.model.ids import topic_of
from shardq.core.model.printable import quoted
from shardq.errors import InvalidUrl, ServerFault, Unanswered, Unavailable
from shardq.features.cold import statements as sql
from shardq.features.cold.ids import LAST_BUCKET, Place, bucket_of, place_in
from shardq.features.cold.rows import Fate, Horizon, Row

T = TypeVar("T")
Values = Mapping[str, Any]

NONE: Values = {}

IDLE = 8
"""Connections that are kept open while nobody needs them."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Between two tries of what met a lost connection."""

CLOCK_S = 10.0
"""How long the difference of two clocks is trusted."""

LOOK = 2000
"""Rows that one page of a list looks through."""

EXACT = 100_000
"""So many rows are counted; of more there is an estimate, where the database has one."""

TABLES = (sql.COLD, sql.NAMED)

STRIPE_COUNT = 1024
"""The stripes of ids of the caller's own: two pushes of one stripe at one time cost the later one a second look."""

MOST_SEQ = (1 << 48) - 1


class Lost(Exception):
    """The connection is lost, or was never there. ``sent``: what was asked may have been carried out."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Session(Protocol):
    """One connection. What it runs outside of ``transaction()`` is committed at once."""

    deadline: float
    """Until then what it runs has to be answered."""

    def run(self, statement: str, values: Values = NONE) -> list[tuple[Any, ...]]:
        """The rows that it returns."""

    def run_in_order(self, statement: str, values: Values = NONE) -> list[tuple[Any, ...]]:
        """The first rows of an index, whatever the database knows of the table: it does not sort all of them."""

    def change(self, statement: str, values: Values = NONE) -> int:
        """The number of rows that it changed."""

    def transaction(self) -> AbstractContextManager[None]:
        """Commits at the end of the block."""

    @property
    def is_fresh(self) -> bool:
        """False if the other end has closed it meanwhile."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Filtered:
    """The rows that are asked for."""

    topic: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    tag: str | None = None
    key: str | None = None

    @property
    def first_bucket(self) -> int:
        return 0 if self.begin_ms is None else min(bucket_of(self.begin_ms), LAST_BUCKET)

    @property
    def last_bucket(self) -> int:
        return LAST_BUCKET if self.end_ms is None else min(bucket_of(self.end_ms), LAST_BUCKET)

    @property
    def values(self) -> dict[str, Any]:
        times = {"begin": self.begin_ms, "before": self.end_ms}
        return {"topic": self.topic, "tag": f"\n{self.tag}\n", "key": f"/{self.key}/", **times}

    def conditions(self, find_in: str) -> Iterator[str]:
        """``find_in``: the function that finds a text in another."""
        if self.topic is not None:
            yield "topic = :topic"
        if self.begin_ms is not None:
            yield "due >= :begin"
        if self.end_ms is not None:
            yield "due < :before"
        if self.tag is not None:
            yield f"{find_in}(tags, :tag) > 0"
        if self.key is not None:
            yield f"{find_in}(id, :key) > 0"


@dataclass(frozen=True, slots=True)
class Page:
    """Rows that match, each with whether it is far."""

    rows: list[tuple[Row, bool]]
    after: Place | str | None
    """Where the next page begins: a place, a name, or "" for the first name; None: this was the last."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many rows a table has."""

    rows: int
    exact: bool
    at_least: bool
    """True if there are more, and nobody knows how many."""
    first_bucket: int | None
    """The hour of the first; None without one."""


class Store(ABC):
    """The table of one engine."""

    now: str
    """The database's clock, in ms, as an expression."""
    lock: str
    """The clause that makes a read of a row wait for those who change it."""
    find_in: str
    """The function that finds a text in another."""

    def __init__(self, where: str) -> None:
        self.where = where
        """The database as messages name it, without its secrets."""
        self.horizon: Horizon = Horizon(0)
        self._ahead_ms = 0.0
        """How far the database's clock is ahead of this machine's."""
        self._learnt_at = -CLOCK_S
        self._forked()
        forks.watch(self, type(self)._forked)

    def _forked(self) -> None:
        """A child of a fork has connections of its own. Those of its parent are left open: closing would end them."""
        self._left = getattr(self, "_idle", None)
        self._idle: list[Session] = []
        self._lock = threading.Lock()
        self._closed = False

    # ---- what a database does in its own way

    @abstractmethod
    def connect(self, deadline: float) -> Session:
        """Raises Lost."""

    @abstractmethod
    def create(self, session: Session) -> None:
        """Makes the tables, where they are missing."""

    @abstractmethod
    def prepare(self, session: Session, rows: Sequence[Row]) -> None:
        """Makes what rows need that are new."""

    @abstractmethod
    def insert_all(self, session: Session, rows: Sequence[Row]) -> bool:
        """Adds rows whose ids name their places, all of them or none. Returns False for none: some are there already,
        or not far enough.
        """

    @abstractmethod
    def take_out(self, session: Session, values: Values) -> int:
        """Makes a row one that its name finds, with another due time."""

    @abstractmethod
    def cancel_named(self, session: Session, name: str) -> int:
        """Removes a far row by its name, and remembers its windows. Returns the number of rows."""

    @abstractmethod
    def add_own(self, session: Session, values: Values) -> int:
        """Adds a row by its name, if the version of its stripe is as given, and raises that. Returns the number of
        rows.
        """

    @abstractmethod
    def among(self, values: Sequence[str] | Sequence[int]) -> tuple[str, Any]:
        """The condition that a column is one of these values, ``:among``, and what is to be given for that."""

    @abstractmethod
    def forget_all(self, session: Session, bucket: int, seqs: Sequence[int]) -> None:
        """Removes rows of one bucket that Redis has."""

    @abstractmethod
    def estimate(self, session: Session, table: str) -> tuple[int, bool]:
        """About how many rows there are; or, with False, in those parts that the database has an estimate of."""

    @abstractmethod
    def tidy(self, session: Session, before: int) -> None:
        """Removes what held only buckets before this one."""

    # ---- calls

    def text(self, statement: str) -> str:
        """The statement with this database's clock."""
        return statement.replace("{now}", self.now)

    def run_among(
        self, session: Session, statement: str, values: Sequence[str] | Sequence[int], more: Values = NONE
    ) -> list[tuple[Any, ...]]:
        """The rows that a statement returns on several ids, or numbers."""
        condition, given = self.among(values)
        return session.run(self.text(statement.replace("{among}", condition)), {**more, "among": given})

    def attempt(self, work: Callable[[Session, bool], T], deadline: float) -> T:
        """Does work on a connection, again if that is lost, until the deadline. The work is told whether what it did
        before may have been carried out.
        """
        sent, pause = False, FIRST_PAUSE_S
        while True:
            try:
                with self._session(deadline) as session:
                    return work(session, sent)
            except ServerFault as exc:
                if not sent:
                    raise
                unanswered = Unanswered(f"the answer of the cold store {self.where} was lost, and now: {exc}")
                unanswered.last = exc
                raise unanswered from exc
            except Lost as exc:
                sent = sent or exc.sent
                left = deadline - time.monotonic()
                if left <= pause:
                    what = f"the cold store {self.where} does not answer: {exc}"
                    raise (Unanswered(what) if sent else Unavailable(what)) from exc
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE_S)

    @contextmanager
    def _session(self, deadline: float) -> Iterator[Session]:
        session = None
        while session is None:
            with self._lock:
                self._closed = False  # an engine may be opened again
                kept = self._idle.pop() if self._idle else None
            if kept is None:
                session = self.connect(deadline)
            elif kept.is_fresh:
                session = kept
            else:
                kept.close()
        session.deadline = deadline
        try:
            if time.monotonic() - self._learnt_at > CLOCK_S:
                self._learn_clock(session)
            yield session
        except BaseException:
            session.close()
            raise
        with self._lock:
            if len(self._idle) < IDLE and not self._closed:
                self._idle.append(session)
                return
        session.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for session in idle:
            with suppress(Exception):
                session.close()

    def open(self, engine: str, deadline: float) -> str:
        """Makes the tables, where they are missing, and gives them to an engine. Returns the identity of the table,
        which no other has. Raises InvalidUrl for one that belongs to another engine.
        """

        def work(session: Session, _: bool) -> str:
            try:
                known = session.run(sql.READ_OWNER)
            except ServerFault:  # it is not there
                self.create(session)
                known = []
            if not known:
                session.change(sql.CLAIM_OWNER, {"engine": engine, "identity": secrets.token_hex(16)})
                known = session.run(sql.READ_OWNER)
            [(owner, identity)] = known
            if owner != engine:
                raise InvalidUrl(
                    f"the cold store {self.where} belongs to the engine {quoted(owner)}, and not to {quoted(engine)}: "
                    "give each engine a database, or a schema, of its own"
                )
            return str(identity)

        return self.attempt(work, deadline)

    def _learn_clock(self, session: Session) -> None:
        before = time.time()
        [(now_ms,)] = session.run(self.text(sql.CLOCK))
        self._ahead_ms = now_ms - 500 * (before + time.time())
        self._learnt_at = time.monotonic()

    @property
    def now_ms(self) -> float:
        """The database's clock, as far as this process knows it."""
        return time.time() * 1000 + self._ahead_ms

    def is_far(self, due_ms: int) -> bool:
        """True if a task is likely for the table. The database decides."""
        return due_ms > self.now_ms + self.horizon.far_ms and bucket_of(due_ms) <= LAST_BUCKET

    # ---- pushing

    def insert(self, rows: Sequence[Row], deadline: float) -> list[Fate]:
        """Adds rows; those that are there already, from an earlier send, count as stored."""

        def work(session: Session, again: bool) -> list[Fate]:
            self.prepare(session, rows)
            if len(rows) > 1 and not any(row.name for row in rows) and self.insert_all(session, rows):
                return ["stored"] * len(rows)
            with session.transaction() if len(rows) > 1 else nullcontext():
                return [self._insert_one(session, row, again=again) for row in rows]

        return self.attempt(work, deadline)

    def _insert_one(self, session: Session, row: Row, *, again: bool) -> Fate:
        """``again``: an earlier send may have been carried out, or still be."""
        insert, find = (sql.INSERT_NAMED, sql.FIND_NAMED) if row.name else (sql.INSERT, sql.FIND)
        values = row._asdict() | {"far": self.horizon.far_ms}
        if session.change(self.text(insert), values):
            return "stored"
        if there := session.run(self.text(find), values):
            return "stored" if again and row_of(there[0])[2:] == row[2:] else "taken"
        return "doubtful" if again else "near"

    # ---- by id

    def find(self, id: str, deadline: float, *, settled: bool = False) -> tuple[Row, bool] | None:
        """The row of a task, and whether it is far. ``settled``: waits for those who change it."""
        return self.attempt(lambda session, _: self._find(session, id, settled=settled), deadline)

    def _find(self, session: Session, id: str, *, settled: bool) -> tuple[Row, bool] | None:
        # By its place first: what is rescheduled goes from there to where its name is.
        suffix = self.lock if settled else ""
        for statement, values in self._ways(id, sql.FIND, sql.FIND_NAMED):
            with session.transaction() if settled else nullcontext():
                found = session.run(statement + suffix, values)
            if found:
                return row_of(found[0]), bool(found[0][-1])
        return None

    def settled(self, ids: Sequence[str], deadline: float) -> list[Row]:
        """Returns the rows that are near and that nobody is changing. A row that is near in a list may have been far
        for a statement that is still to be committed: it is not moved before that.
        """

        def work(session: Session, _: bool) -> list[Row]:
            found = (self._find(session, id, settled=True) for id in ids)
            return [each[0] for each in found if each is not None and not each[1]]

        return self.attempt(work, deadline)

    def cancel(self, id: str, deadline: float) -> Literal["done", "unknown", "not far"]:
        """Removes a far task."""

        def work(session: Session, again: bool) -> Literal["done", "unknown", "not far"]:
            if (place := _place_of(id)) and session.change(self.text(sql.CANCEL), self._at(id, place)):
                return "done"
            if self.cancel_named(session, id):
                return "done"
            return "unknown" if again else "not far"

        return self.attempt(work, deadline)

    def reschedule(self, id: str, due_ms: int, deadline: float) -> Literal["done", "unknown", "not far"]:
        """Gives a far task another due time, far or near."""
        to = {"to": due_ms, "to_bucket": min(bucket_of(due_ms), LAST_BUCKET), "name": id}

        def work(session: Session, again: bool) -> Literal["done", "unknown", "not far"]:
            if (place := _place_of(id)) and self.take_out(session, self._at(id, place) | to):
                return "done"
            if session.change(self.text(sql.MOVE_NAMED), to | {"far": self.horizon.far_ms}):
                return "done"
            return "unknown" if again else "not far"

        return self.attempt(work, deadline)

    def reschedule_all(self, rows: Sequence[Row], due_ms: int, deadline: float) -> list[str]:
        """Gives those of some rows that are far another due time, in one transaction. Returns their ids."""
        to = {"to": due_ms, "to_bucket": min(bucket_of(due_ms), LAST_BUCKET), "far": self.horizon.far_ms}

        def work(session: Session, _: bool) -> list[str]:
            with session.transaction():
                done = self.take_out_all(session, [row for row in rows if not row.name], to)
                # those that an earlier send has taken out are found by their names
                left = list({row.id for row in rows} - {*done})
                if left:
                    done += [id for (id,) in self.run_among(session, sql.MOVE_ALL_NAMED, left, to)]
            return done

        return self.attempt(work, deadline)

    def take_out_all(self, session: Session, rows: Sequence[Row], to: Values) -> list[str]:
        """Makes rows ones that their names find, with another due time. Returns the ids of those that were far."""
        return [row.id for row in rows if self.take_out(session, {**row._asdict(), "name": row.id, **to})]

    def _ways(self, id: str, by_place: str, by_name: str) -> Iterator[tuple[str, Values]]:
        if place := _place_of(id):
            yield self.text(by_place), self._at(id, place)
        yield self.text(by_name), {"name": id, "far": self.horizon.far_ms}

    def _at(self, id: str, place: Place) -> dict[str, Any]:
        return {"bucket": place.bucket, "seq": place.seq, "topic": topic_of(id), "far": self.horizon.far_ms}

    # ---- for those who move rows to Redis

    def near(
        self, table: str, after: Place, *, members: int, member: int, most: int, bytes: int, deadline: float
    ) -> list[Row]:
        """A page of the rows to load behind a place."""
        within = self.horizon.after_ms
        values = {
            "bucket": after.bucket,
            "seq": after.seq,
            "last": bucket_of(int(self.now_ms) + within) + 1,  # one more, as the clock is known about
            "within": within,
            "overdue": within // 2,
            "members": members,
            "member": member,
            "most": most,
            "bytes": bytes,
        }
        statement = self.text(sql.near(table))
        found = self.attempt(lambda session, _: session.run_in_order(statement, values), deadline)
        return [row_of(each) for each in found]

    def forget(self, rows: Sequence[Row], deadline: float) -> None:
        """Removes rows that Redis has; not one that got another due time meanwhile."""

        def work(session: Session, _: bool) -> None:
            by_bucket: dict[int, list[int]] = {}
            for row in rows:
                if row.name:
                    session.change(sql.FORGET_NAMED, {"name": row.name, "due": row.due, "seq": row.seq})
                else:
                    by_bucket.setdefault(row.bucket, []).append(row.seq)
            for bucket, seqs in by_bucket.items():
                self.forget_all(session, bucket, seqs)

        self.attempt(work, deadline)

    def tidied(self, before: int, deadline: float) -> None:
        """Removes what is left of buckets before this one."""

        def work(session: Session, _: bool) -> None:
            self.tidy(session, before)
            session.change(self.text(sql.FORGET_WINDOWS))

        self.attempt(work, deadline)

    # ---- many

    def page(self, asked: Filtered, after: Place | str, limit: int, deadline: float) -> Page:
        """The rows that match behind a place of the first table, or a name of the second. The work is bounded: a page
        may be short, or empty, before the end.
        """
        return self.attempt(lambda session, _: self._page(session, asked, after, limit), deadline)

    def _page(self, session: Session, asked: Filtered, after: Place | str, limit: int) -> Page:
        if asked.key is not None and not isinstance(after, str):
            return Page([], "")  # rows with keys have names
        filters = "".join(f" AND {each}" for each in asked.conditions(self.find_in))
        values = asked.values | {"far": self.horizon.far_ms, "look": LOOK - 1, "most": limit}
        if isinstance(after, str):
            ends = session.run(sql.END_OF_LOOK_NAMED, values | {"after": after})
            end = ends[0][0] if ends else None
            found = session.run(self.text(sql.listed_named(filters)), values | {"after": after, "end": end})
            rows = [(row_of(each), bool(each[-1])) for each in found]
            return Page(rows, rows[-1][0].name if len(rows) == limit else end)
        first = max(after, Place(asked.first_bucket, -1))
        values |= {"bucket": first.bucket, "seq": first.seq, "last": asked.last_bucket}
        ends = session.run_in_order(sql.END_OF_LOOK, values)
        last = Place(*ends[0]) if ends else None
        end_bucket, end_seq = last or (LAST_BUCKET, MOST_SEQ)
        # as last, too: by that a database leaves out the partitions behind
        values |= {"end_bucket": end_bucket, "end_seq": end_seq, "last": min(asked.last_bucket, end_bucket)}
        found = session.run(self.text(sql.listed(filters)), values)
        rows = [(row_of(each), bool(each[-1])) for each in found]
        return Page(rows, rows[-1][0].place if len(rows) == limit else last or "")

    def cancel_all(self, rows: Sequence[Row], deadline: float) -> int:
        """Removes those of some rows that are far. Returns how many."""

        def work(session: Session, _: bool) -> int:
            done = 0
            with session.transaction():
                for row in rows:
                    if row.name:
                        done += self.cancel_named(session, row.name)
                    else:
                        done += session.change(self.text(sql.CANCEL), row._asdict() | {"far": self.horizon.far_ms})
            return done

        return self.attempt(work, deadline)

    def drop(self, before_ms: int, timeout: float) -> int:
        """Removes the rows that are due before an instant, near ones too. Returns how many. Each hour of them has the
        timeout for itself.
        """
        dropped = 0
        for table in TABLES:
            while count := self.attempt(partial(self._drop, table, before_ms), time.monotonic() + timeout):
                dropped += count
        return dropped

    @staticmethod
    def _drop(table: str, before_ms: int, session: Session, _: bool) -> int:
        """Removes the rows of the first hour that has some."""
        values = {"last": bucket_of(before_ms), "before": before_ms}
        first = session.run_in_order(sql.FIRST_BEFORE.format(table=table), values)
        if not first:
            return 0
        return session.change(sql.DROP.format(table=table), values | {"bucket": first[0][0]})

    def spans(self, begin_ms: int, step_ms: int, steps: int, deadline: float) -> list[int]:
        """The rows that are due in each of so many spans, and as the last number those that are due later."""

        def work(session: Session, _: bool) -> list[int]:
            counts = [0] * (steps + 1)
            end_ms = begin_ms + steps * step_ms
            values = {
                "begin": begin_ms, "step": step_ms, "end": end_ms, "bucket": bucket_of(begin_ms),
                "last": bucket_of(end_ms),
            }  # fmt: skip
            for table in TABLES:
                for span, count in session.run(sql.spans(table), values):
                    counts[span] += count
            counts[steps] = max(0, self._counted(session).rows - sum(counts))
            return counts

        return self.attempt(work, deadline)

    def counted(self, deadline: float) -> Counted:
        """How many rows there are."""
        return self.attempt(lambda session, _: self._counted(session), deadline)

    def _counted(self, session: Session) -> Counted:
        rows, exact, at_least, firsts = 0, True, False, list[int]()
        for table in TABLES:
            [(count,)] = session.run(sql.COUNT.format(table=table), {"most": EXACT})
            if count == EXACT:
                estimate, is_whole = self.estimate(session, table)
                count, exact, at_least = max(count, estimate), False, at_least or not is_whole
            rows += count
            [(first,)] = session.run(sql.OLDEST.format(table=table))
            if first is not None:
                firsts.append(first)
        return Counted(rows, exact, at_least, min(firsts, default=None))


def row_of(columns: Sequence[Any]) -> Row:
    bucket, seq, due, topic, tags, record, name, until, known, rule = columns[:10]
    return Row(bucket, seq, due, topic, tags, bytes(record), name, until, known, rule)


def _place_of(id: str) -> Place | None:
    """The place of a row that an id names; None where only its name does."""
    place = place_in(id) if lane_of(id) is None else None
    return place if place is not None and place.bucket <= LAST_BUCKET else None
