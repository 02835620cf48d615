"""Pushes that wait until copies have confirmed them: WAIT or WAITAOF, on the connection that carried the push.

On any other connection the answer would be about other writes. So each push here goes over a line of its own, and one
that had to be connected anew between the two counts as unconfirmed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from shardq.calls.request import Call, Command
from shardq.drivers.sync import Driver, Line
from shardq.errors import InvalidOption, NotReplicated, ServerFault, ShardqError
from shardq.model.task import Receipt
from shardq.operation import Operation, run

T = TypeVar("T")

Durability = Literal["replicated", "fsynced"]

WAIT_MS = 2000
"""For the copies to confirm: they do in a round trip; one that needs longer is no good copy now."""

PUSHES = ("push", "push_unique")


def check_durability(durability: str | None) -> None:
    if durability not in (None, "replicated", "fsynced"):
        raise InvalidOption(f"durability={durability!r} is not possible; use 'replicated', 'fsynced', or None")


class Confirming:
    """Carries the calls of one push, in the place of a driver. Lines are kept for the next one."""

    def __init__(self, driver: Driver, lines: Lines, durability: Durability) -> None:
        self._driver = driver
        self._lines = lines
        self._durability = durability
        self._reached: int | None = None
        """The fewest copies that confirmed a write of this push; None: all that were asked."""
        self._cause: ServerFault | None = None

    def push(self, operation: Operation[list[Receipt]]) -> list[Receipt]:
        """Raises NotReplicated when the tasks are stored and too few copies have confirmed it."""
        receipts = run(self, operation)
        if self._reached is not None:
            raise NotReplicated(receipts, self._reached, self._durability) from self._cause
        return receipts

    def call(self, call: Command[T], timeout: float | None = None) -> T:
        if not isinstance(call, Call) or call.script.name not in PUSHES:
            return self._driver.call(call, timeout)
        line = self._lines.take(call.slot)
        try:
            result: T = line.call(call, timeout)
            try:
                self._confirm(line, call.slot)
            except ServerFault as exc:
                # it is stored; only that it is also elsewhere can't be said
                self._reached, self._cause = 0, exc
        except BaseException:
            line.close()
            raise
        self._lines.give(line)
        return result

    def call_all(
        self, calls: Iterable[Command[T]], *, timeout: float | None = None
    ) -> Iterator[tuple[Command[T], T | ShardqError]]:
        for call in calls:
            try:
                yield call, self.call(call, timeout)
            except ShardqError as exc:
                yield call, exc

    def confirm(self, seals: Sequence[Call[None]]) -> dict[int, str | None]:
        return self._driver.confirm(seals)

    def _confirm(self, line: Line, slot: int) -> None:
        connects = line.connects
        if self._durability == "replicated":
            wanted = max(1, line.call(_replicas(slot)))
            reached = line.call(_command(slot, "WAIT", wanted, WAIT_MS))
        else:
            wanted = 1
            reached = line.call(_command(slot, "WAITAOF", 1, 0, WAIT_MS))[0]
        if line.connects != connects:
            reached = 0
        if reached < wanted:
            self._reached = reached if self._reached is None else min(reached, self._reached)


class Lines:
    """Lines for durable pushes, by slot. Thread-safe."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._idle: dict[int, list[Line]] = {}

    def take(self, slot: int) -> Line:
        with self._lock:
            idle = self._idle.get(slot)
            if idle:
                return idle.pop()
        return self._driver.line(slot)

    def give(self, line: Line) -> None:
        with self._lock:
            self._idle.setdefault(line.slot, []).append(line)

    def close(self) -> None:
        with self._lock:
            lines = [line for idle in self._idle.values() for line in idle]
            self._idle.clear()
        for line in lines:
            line.close()


def _replicas(slot: int) -> Command[int]:
    def decode(text: bytes) -> int:
        for row in text.splitlines():
            name, _, value = row.partition(b":")
            if name == b"connected_slaves":
                return int(value)
        raise ServerFault("INFO replication does not say how many replicas are connected")

    return Command(slot=slot, words=("INFO", "replication"), decode=decode)


def _command(slot: int, *words: str | int) -> Command[Any]:
    return Command(slot=slot, words=words, decode=lambda answer: answer)
