"""One command of a search, as far as it has come. It runs the product's own code in a greenlet, up to its next
statement, commit or request; it is a function of the answers it was given, and of when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import greenlet

from shardq.core.calls.request import Command
from shardq.errors import ShardqError, Unanswered
from shardq.features.far import loader, relaying, store, storing_sync
from shardq.features.far.sqlite import SqliteSession, SqliteStore
from shardq.features.far.store import NONE, Lost, Values

DEADLINE = 1e6


class Sql(NamedTuple):
    """A statement."""

    text: str
    values: Mapping[str, Any]
    counts: bool
    """True if the number of rows is asked for, and not the rows."""
    inside: bool
    """True if it is not the first of its transaction."""
    alone: bool
    """True if it is its own transaction."""

    def __str__(self) -> str:
        words = {name: value for name, value in self.values.items() if f":{name}" in self.text}
        return f"{' '.join(self.text.split())[:90]}… {words}"[:220]


class Commit(NamedTuple):
    def __str__(self) -> str:
        return "COMMIT"


Request = Sql | Commit | Command[Any]


class Fate(NamedTuple):
    """In place of an answer."""

    what: str


LOST, GIVE_UP = Fate("lost"), Fate("lost, and its time is over")


class Given(NamedTuple):
    """An answer, and when it came."""

    answer: Any
    now_us: int
    mark: int
    """The hash of the answer."""


def given(answer: Any, now_us: int) -> Given:
    return Given(answer, now_us, hash(repr(answer)))


@dataclass
class Stand:
    """Where a command stands."""

    open: Request | None
    result: Any = None

    @property
    def is_over(self) -> bool:
        return self.open is None


class Env:
    """What a command knows of the world."""

    def __init__(self, number: int, now_us: int) -> None:
        self.number = number
        self.now_us = now_us
        self.is_late = False
        self.hub = greenlet.getcurrent()

    def ask(self, request: Request) -> Any:
        return self.hub.switch(request)


_running: list[Env] = []

_time = SimpleNamespace(
    time=lambda: _running[-1].now_us / 1e6,
    monotonic=lambda: 2 * DEADLINE if _running[-1].is_late else 0.0,
    sleep=lambda _: None,
)


@contextmanager
def patched() -> Iterator[None]:
    """The modules of the product on the clock of a search."""
    with ExitStack() as patches:
        for module in (store, relaying, storing_sync, loader):
            patches.enter_context(mock.patch.object(module, "time", _time))
        yield


def stand_of(make: Callable[[Env], Any], so_far: Sequence[Given], number: int, began_us: int) -> Stand:
    """Carries a command on by what it was given."""
    env = Env(number, began_us)

    def whole() -> Stand:
        try:
            return Stand(None, make(env))
        except ShardqError as exc:
            return Stand(None, exc)

    running = greenlet.greenlet(whole)
    _running.append(env)
    try:
        step = running.switch()
        for each in so_far:
            env.now_us = each.now_us
            env.is_late = env.is_late or each.answer is GIVE_UP
            step = running.switch(each.answer)
        if isinstance(step, Stand):
            return step
        return Stand(step)
    finally:
        _running.pop()
        if not running.dead:
            running.throw()  # it ends there


class SimSession(SqliteSession):
    def __init__(self, env: Env) -> None:
        self.deadline = DEADLINE
        self._env = env
        self._is_open = self._has_begun = False

    def run(self, statement: str, values: Values = NONE) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._carried(statement, values, counts=False)
        return rows

    def change(self, statement: str, values: Values = NONE) -> int:
        count: int = self._carried(statement, values, counts=True)
        return count

    def change_all(self, statement: str, rows: Sequence[Values]) -> int:
        return sum(self.change(statement, row) for row in rows)

    def _carried(self, statement: str, values: Values, *, counts: bool) -> Any:
        asked = Sql(statement, values, counts, inside=self._has_begun, alone=not self._is_open)
        self._has_begun = self._is_open
        answer = self._env.ask(asked)
        if isinstance(answer, Fate):
            raise Lost(answer.what, sent=True)
        if not self._is_open and not statement.lstrip().startswith("SELECT"):
            self._commit()
        return answer

    def _commit(self) -> None:
        if isinstance(fate := self._env.ask(Commit()), Fate):
            raise Lost(fate.what, sent=True)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._is_open:
            yield
            return
        self._is_open, self._has_begun = True, False
        try:
            yield
            if self._has_begun:
                self._commit()
        finally:
            self._is_open = self._has_begun = False

    def close(self) -> None:
        """There is nothing to close."""


LOCK = " /* for update */"


class SimStore(SqliteStore):
    """The table that statements of a search go to."""

    now = "virtual_now()"
    lock = LOCK

    def __init__(self, env: Env) -> None:
        super().__init__("the table")
        self._env = env
        self._learnt_at = 10 * DEADLINE  # the clocks are the same

    def connect(self, deadline: float) -> SqliteSession:
        return SimSession(self._env)


class SimDriver:
    """Servers as an operation of a command sees them."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.outages = SimpleNamespace(failed=lambda *_: True, over=lambda _: None)

    def call(self, request: Command[Any], timeout: float | None = None, deadline: float | None = None) -> Any:
        while True:
            answer = self._env.ask(request)
            if answer is LOST:
                request.in_doubt = True
                request = request.after_loss()
            elif answer is GIVE_UP:
                request.in_doubt = True
                raise Unanswered("its answer was lost")
            else:
                return request.decode(answer)

    def call_all(
        self, calls: Any, *, timeout: float | None = None, deadline: Any = None, spare: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        for key, request in calls:
            try:
                yield key, self.call(request)
            except ShardqError as exc:
                yield key, exc

    def confirm(self, seals: Sequence[Any], deadline: float = DEADLINE, *, disk: bool = False) -> dict[int, str | None]:
        return {seal.slot: "one" for seal in seals}
