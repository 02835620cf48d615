"""The table of tasks that are far away: its rows by id, in pages, and in numbers. What differs between databases is in
``postgres.py`` and ``sqlite.py``; all statements are in ``statements.py``.

Threads may share a store. Every call ends at its deadline. ``Unavailable`` says that the database could not be asked,
or can't do it, and that nothing was done; so do ``ReadOnly`` and ``AccessDenied``. ``Unanswered`` says that what was
sent may have been done, and ``ServerFault`` itself that a row is refused for what is in it.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from shardq.core import forks
from shardq.core.model.printable import quoted
from shardq.errors import InvalidUrl, ServerFault, Unanswered, Unavailable
from shardq.features.far import statements as sql
from shardq.features.far.rows import LAST_MS, Fate, Horizon, Owner, Row

T = TypeVar("T")
Values = Mapping[str, Any]
Said = Literal["done", "unknown", "not far"]

NONE: Values = {}

IDLE = 8
"""The most idle connections that are kept open."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Between two tries of what met a lost connection."""

CLOCK_S = 10.0
"""How long the difference of two clocks is trusted."""

CLOCK_SLACK_MS = 60_000
"""A row that is due so much later than this process takes for near is not looked at: the index ends there, as no
condition on the database's own clock makes it.
"""

LOOK = 2000
"""Rows that one page of a list looks through."""

EXACT = 100_000
"""So many rows are counted; of more there is an estimate, where the database has one."""

DROPPED = 10_000
"""The most rows that one statement removes."""

END = "\U0010ffff"
"""Behind all ids."""

EVER = 1 << 62
"""A latest instant that never comes."""


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
    def beginning(self) -> str:
        """What all of their ids begin with."""
        if not self.topic:
            return f"/{self.key}/" if self.topic == "" and self.key is not None else ""
        return f"{self.topic}/" if self.key is None else f"{self.topic}/{self.key}/"

    @property
    def values(self) -> dict[str, Any]:
        return {"tag": f"\n{self.tag}\n", "key": f"/{self.key}/", "begin": self.begin_ms, "before": self.end_ms}

    def conditions(self, find_in: str) -> Iterator[str]:
        """``find_in``: the function that finds a text in another."""
        if self.topic == "" and self.key is None:
            yield f"{find_in}(id, '/') < 2"
        if self.begin_ms is not None:
            yield "due >= :begin"
        if self.end_ms is not None:
            yield "due < :before"
        if self.tag is not None:
            yield f"{find_in}(tags, :tag) > 0"
        if self.key is not None and self.topic is None:
            yield f"{find_in}(id, :key) > 0"


class Page(NamedTuple):
    """Rows that match, each with whether it is far."""

    rows: list[tuple[Row, bool]]
    after: str | None
    """The id behind which the next page begins; None: this was the last."""


class Found(NamedTuple):
    """A row that is there."""

    row: Row
    is_far: bool
    is_gone: bool


class Counted(NamedTuple):
    """How many rows a table has."""

    rows: int
    exact: bool
    at_least: bool
    """True if ``rows`` is a minimum: there are more, and their number is unknown."""
    first_ms: int | None
    """When the first is due; None without one."""


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
        self.place: str = ""
        """The place of the open table: that of a copy is another. Empty where the database does not tell it."""
        self._ahead_ms = 0.0
        """How far the database's clock is ahead of this machine's."""
        self._steady_ms = 0.0
        """The same of the steady one."""
        self._learnt_at = -CLOCK_S
        self._is_open = False
        self.halted: str = ""
        """Why no row may be moved, as far as this process knows."""
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
    def whereabouts(self, session: Session) -> str:
        """The place of the tables, as this and no other database has it; empty if it does not tell."""

    @abstractmethod
    def insert_all(self, session: Session, rows: Sequence[Row]) -> bool:
        """Adds rows, all of them or none. Returns False for none: some are there already, or not far enough."""

    @abstractmethod
    def forget_all(self, session: Session, rows: Sequence[Row]) -> None:
        """Removes rows that were made for the table, and have these due times still."""

    @abstractmethod
    def among(self, ids: Sequence[str]) -> tuple[str, Any]:
        """The condition that a column is one of these ids, ``:among``, and what is to be given for that."""

    @abstractmethod
    def estimate(self, session: Session) -> int | None:
        """About how many rows there are; None where the database has no estimate."""

    # ---- calls

    def text(self, statement: str) -> str:
        """The statement with this database's clock."""
        return statement.replace("{now}", self.now)

    def _for(self, statement: str, ids: Sequence[str], more: Values = NONE) -> tuple[str, Values]:
        """A statement on rows, which are found by their ids."""
        condition, given = self.among(ids)
        values = {"far": self.horizon.far_ms, "among": given, "nothing": b"", "latest": EVER, **more}
        return self.text(statement.replace("{among}", condition)), values

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
                unanswered = Unanswered(f"the answer of the far store {self.where} was lost, and now: {exc}")
                unanswered.last = exc
                raise unanswered from exc
            except Lost as exc:
                sent = sent or exc.sent
                left = deadline - time.monotonic()
                if left <= pause:
                    what = f"the far store {self.where} does not answer: {exc}"
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
                self._learn(session)
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

    def open(self, engine: str, ahead: float, deadline: float) -> Owner:
        """Makes the tables, where they are missing, and gives them to an engine, whose ``ahead`` this is unless it has
        one. Raises InvalidUrl for tables that belong to another engine.
        """

        def work(session: Session, _: bool) -> Owner:
            try:
                known = session.run(sql.READ_OWNER)
            except ServerFault:  # it is not there
                self.create(session)
                known = []
            if not known:
                # the identity: no other table has it
                mine = {"engine": engine, "identity": secrets.token_hex(16), "ahead": ahead}
                session.change(self.text(sql.CLAIM_OWNER), mine)
                known = session.run(sql.READ_OWNER)
            owner = self._obey(known[0])
            if owner.engine != engine:
                raise InvalidUrl(
                    f"the far store {self.where} belongs to the engine {quoted(owner.engine)}, and not to "
                    f"{quoted(engine)}: give each engine a database, or a schema, of its own"
                )
            if where := self.whereabouts(session):
                self.place = hashlib.blake2b(where.encode(), digest_size=8).hexdigest()
            return owner

        return self.attempt(work, deadline)

    def change_ahead(self, ahead: float, deadline: float) -> Owner:
        """Gives the table another ``ahead``. Raises Unavailable while an earlier change is under way."""

        def work(session: Session, _: bool) -> Owner:
            owner = self._obey(session.run(sql.READ_OWNER)[0])
            if ahead != owner.ahead:
                if (left_s := (owner.changes_until - self.now_ms) / 1000) > 0:
                    raise Unavailable(f"ahead was changed a while ago; change it again in {left_s:,.0f} s")
                values = {"ahead": ahead, "was": owner.ahead, "changed": owner.changed}
                session.change(self.text(sql.CHANGE_AHEAD), values)
                owner = self._obey(session.run(sql.READ_OWNER)[0])
                if owner.ahead != ahead:
                    raise Unavailable(f"somebody else has set ahead to {owner.ahead:g} s at the same time")
            return owner

        return self.attempt(work, deadline)

    def owner(self, deadline: float) -> Owner:
        """Whose the table is now, with its last beat."""
        return self.attempt(lambda session, _: self._obey(session.run(sql.READ_OWNER)[0]), deadline)

    def _learn(self, session: Session) -> None:
        """Asks for the clock, and for the ``ahead`` that counts: it may be changed while processes run."""
        before = time.time()
        [(now_ms,)] = session.run(self.text(sql.CLOCK))
        self._ahead_ms = now_ms - 500 * (before + time.time())
        for row in session.run(sql.READ_OWNER) if self._is_open else ():
            self._obey(row)
        self._learnt_at = time.monotonic()
        self._steady_ms = now_ms - 1000 * self._learnt_at

    def _obey(self, row: Sequence[Any]) -> Owner:
        owner, self._is_open = Owner(*row), True
        self.horizon, self.halted = owner.horizon(self.now_ms), owner.halted
        return owner

    @property
    def now_ms(self) -> float:
        """The database's clock, as far as this process knows it."""
        return time.time() * 1000 + self._ahead_ms

    def after(self, seconds: float) -> int:
        """The instant so many seconds from now, by the database's clock. If this machine was suspended since it was
        learnt, that is too early, and never too late.
        """
        return int(self._steady_ms + 1000 * (time.monotonic() + seconds))

    def is_far(self, due_ms: int) -> bool:
        """True if a task is likely for the table. The database decides."""
        return self.now_ms + self.horizon.far_ms < due_ms < LAST_MS

    # ---- pushing

    def insert(self, rows: Sequence[Row], deadline: float) -> list[Fate]:
        """Adds rows; those that are there already, from an earlier send, count as stored."""

        def work(session: Session, again: bool) -> list[Fate]:
            if len(rows) > 1 and self.insert_all(session, rows):
                return ["stored"] * len(rows)
            with session.transaction() if len(rows) > 1 else nullcontext():
                return [self._insert_one(session, row, again=again) for row in rows]

        return self.attempt(work, deadline)

    def _insert_one(self, session: Session, row: Row, *, again: bool) -> Fate:
        """``again``: an earlier send may have been carried out, or still be."""
        if session.change(self.text(sql.INSERT), row._asdict() | {"far": self.horizon.far_ms}):
            return "stored"
        if there := self._found(session, [row.id]):
            return "stored" if again and there[0].row._replace(known=0) == row else "taken"
        return "doubtful" if again else "near"

    # ---- by id

    def find(self, ids: Sequence[str], deadline: float, *, settled: bool = False) -> list[Found]:
        """The rows of ids, also those that are gone. ``settled``: waits for those who change them. A row that is near
        in a list may have been far for a statement that is still to be committed: it is not moved before that.
        """
        return self.attempt(lambda session, _: self._found(session, ids, settled=settled), deadline)

    def _found(self, session: Session, ids: Sequence[str], *, settled: bool = False) -> list[Found]:
        statement, values = self._for(sql.FIND, ids)
        with session.transaction() if settled else nullcontext():
            found = session.run(statement + (self.lock if settled else ""), values)
        return [Found(row_of(each), bool(each[-2]), bool(each[-1])) for each in found]

    def cancel(self, id: str, deadline: float, latest: int = EVER) -> Said:
        """Removes a far task. After ``latest`` it does nothing."""
        return self._order(deadline, [id], sql.CANCEL, sql.LEAVE, latest=latest)

    def reschedule(self, id: str, due_ms: int, deadline: float, latest: int = EVER) -> Said:
        """Gives a far task another due time, far or near. After ``latest`` it does nothing."""
        return self._order(deadline, [id], sql.MOVE, to=due_ms, latest=latest)

    def _order(self, deadline: float, ids: Sequence[str], *statements: str, **more: Any) -> Said:
        def work(session: Session, again: bool) -> Said:
            if any(session.change(*self._for(statement, ids, more)) for statement in statements):
                return "done"
            return "unknown" if again else "not far"

        return self.attempt(work, deadline)

    # ---- for pushes of the outbox, which are done once

    def add(self, rows: Sequence[tuple[Row, int, int]], deadline: float) -> list[bool | None]:
        """Adds rows under ids that are free, each with the nonce of the row that is gone under its id, or -1, and the
        instant until when it may be added. Returns for each whether that was done; None where it may have been, as an
        answer was lost. Those of False are to be looked for again.
        """
        return self._once(sql.ADD, rows, deadline)

    def replace(self, rows: Sequence[tuple[Row, int, int]], deadline: float) -> list[bool | None]:
        """Puts rows in the place of far ones, whose nonces these are, as ``add`` does."""
        return self._once(sql.REPLACE, rows, deadline)

    def _once(self, statement: str, rows: Sequence[tuple[Row, int, int]], deadline: float) -> list[bool | None]:
        def work(session: Session, again: bool) -> list[bool | None]:
            with session.transaction() if len(rows) > 1 else nullcontext():
                done = [
                    session.change(
                        self.text(statement),
                        row._asdict() | {"was": was, "latest": latest, "far": self.horizon.far_ms},
                    )
                    for row, was, latest in rows
                ]
            return [bool(count) or (None if again else False) for count in done]

        return self.attempt(work, deadline)

    # ---- for those who move rows to Redis

    def near(
        self,
        after: tuple[int, str],
        *,
        sent: bool = False,
        members: int,
        member: int,
        most: int,
        bytes: int,
        deadline: float,
    ) -> list[Row]:
        """A page of the rows to load, behind a due time and an id. ``sent``: of the rows that commands have sent, which
        wait to be confirmed.
        """
        within = self.horizon.ahead_ms
        due, id = after
        values = {
            "due": due, "id": id, "last": int(self.now_ms) + within + CLOCK_SLACK_MS, "within": within,
            "overdue": within // 2, "hurry": self.horizon.memory_ms // 4, "members": members, "member": member,
            "most": most, "bytes": bytes,
        }  # fmt: skip
        text = self.text(sql.UNCONFIRMED if sent else sql.NEAR)
        found = self.attempt(lambda session, _: session.run_in_order(text, values), deadline)
        return [row_of(each) for each in found]

    def sent(self, rows: Sequence[Row], deadline: float) -> None:
        """Notes that Redis has rows, whose replicas and disk may still lack them: they are its tasks alone."""
        nonces: dict[tuple[str, int], list[str]] = {}
        for row in sorted(rows):
            nonces.setdefault((row.id, row.nonce) if row.nonce is not None else ("", -1), []).append(row.id)
        memory_ms = self.horizon.memory_ms // 2  # less than Redis': it may have been a while ago

        def work(session: Session, _: bool) -> None:
            with session.transaction() if len(nonces) > 1 else nullcontext():
                for (_id, nonce), ids in nonces.items():
                    session.change(*self._for(sql.SENT, ids, {"memory": memory_ms, "nonce": nonce}))

        self.attempt(work, deadline)

    def forget(self, rows: Sequence[Row], deadline: float) -> None:
        """Removes rows that Redis, its replicas and its disk have; not one that got another due time meanwhile, or
        another task.
        """

        made = sorted(row for row in rows if row.nonce is None)
        known = sorted(row for row in rows if row.nonce is not None)

        def work(session: Session, _: bool) -> None:
            with session.transaction():
                if made:
                    self.forget_all(session, made)
                for row in known:
                    session.change(sql.FORGET_KNOWN, row._asdict() | {"nothing": b""})

        self.attempt(work, deadline)

    def tidied(self, deadline: float) -> None:
        """Removes the rows that are gone, and need not be remembered any more."""
        self.attempt(lambda session, _: session.change(self.text(sql.FORGOTTEN)), deadline)

    # ---- many

    def page(self, asked: Filtered, after: str, limit: int, deadline: float) -> Page:
        """The rows that match behind an id. The work is bounded: a page may be short, or empty, before the end."""
        return self.attempt(lambda session, _: self._page(session, asked, after, limit), deadline)

    def _page(self, session: Session, asked: Filtered, after: str, limit: int) -> Page:
        begin = max(after, asked.beginning)
        values = asked.values | {
            "far": self.horizon.far_ms, "look": LOOK - 1, "most": limit, "after": begin, "end": asked.beginning + END,
        }  # fmt: skip
        ends = session.run_in_order(sql.END_OF_LOOK, values)
        end = ends[0][0] if ends else None
        filters = "".join(f" AND {each}" for each in asked.conditions(self.find_in))
        found = session.run(self.text(sql.listed(filters)), values | ({"end": end} if end is not None else {}))
        rows = [(row_of(each), bool(each[-1])) for each in found]
        return Page(rows, rows[-1][0].id if len(rows) == limit else end)

    def cancel_all(self, ids: Sequence[str], deadline: float) -> int:
        """Removes those of some rows that are far. Returns how many."""

        def work(session: Session, _: bool) -> int:
            return sum(session.change(*self._for(statement, ids)) for statement in (sql.CANCEL, sql.LEAVE))

        return self.attempt(work, deadline)

    def reschedule_all(self, ids: Sequence[str], due_ms: int, deadline: float) -> list[str]:
        """Gives those of some rows that are far another due time. Returns their ids."""

        def work(session: Session, _: bool) -> list[str]:
            with session.transaction():
                statement, values = self._for(f"{sql.MOVE} RETURNING id", ids, {"to": due_ms})
                return [id for (id,) in session.run(statement, values)]

        return self.attempt(work, deadline)

    def drop(self, before_ms: int, timeout: float) -> int:
        """Removes the rows that are due before an instant, near ones too. Returns how many. Each ten thousand of them
        have the timeout for themselves.
        """
        dropped = 0
        values = {"before": before_ms, "most": DROPPED}
        while count := self.attempt(lambda session, _: session.change(sql.DROP, values), time.monotonic() + timeout):
            dropped += count
        return dropped

    def spans(self, begin_ms: int, step_ms: int, steps: int, deadline: float) -> list[int]:
        """The rows that are due in each of so many spans, and as the last number those that are due later."""

        def work(session: Session, _: bool) -> list[int]:
            counts = [0] * (steps + 1)
            values = {"begin": begin_ms, "step": step_ms, "end": begin_ms + steps * step_ms}
            for span, count in session.run(sql.SPANS, values):
                counts[span] += count
            counts[steps] = max(0, self._counted(session).rows - sum(counts))
            return counts

        return self.attempt(work, deadline)

    def counted(self, deadline: float) -> Counted:
        """How many rows there are."""
        return self.attempt(lambda session, _: self._counted(session), deadline)

    def _counted(self, session: Session) -> Counted:
        [(count,)] = session.run(sql.COUNT, {"most": EXACT})
        [(first_ms,)] = session.run(sql.FIRST)
        if count < EXACT:
            return Counted(count, exact=True, at_least=False, first_ms=first_ms)
        estimate = self.estimate(session)
        return Counted(max(count, estimate or 0), exact=False, at_least=estimate is None, first_ms=first_ms)


def row_of(columns: Sequence[Any]) -> Row:
    id, due, tags, record, until, known, nonce, rule = columns[:8]
    return Row(id, due, tags, bytes(record), until or 0, known or 0, nonce, rule or "keep")
