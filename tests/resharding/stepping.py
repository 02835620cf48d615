"""An operation that is advanced one request at a time, so that a test decides what happens between any two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from shardq.core.calls.request import Command
from shardq.core.operation import Confirm, Histories, Many, Operation, Step
from shardq.errors import ShardqError

Carry = Callable[[Command[Any]], Any]
"""Carries one request out; answers its result, or the ShardqError it came to."""


def without_replicas(step: Confirm) -> Histories:
    return {seal.slot: "one" for seal in step.seals}


class Stepped:
    """Begins when it is made, and waits before its first request. ``confirm`` answers for the replicas, at once."""

    def __init__(
        self, what: str, operation: Operation[Any], *, confirm: Callable[[Confirm], Histories] = without_replicas
    ) -> None:
        self.what = what
        self.done = False
        self.result: Any = None
        """What it came to: its value, or its ShardqError."""
        self._operation = operation
        self._confirm = confirm
        self.request: Command[Any] | None = None
        """The next one; None at the end, and in a pause."""
        self._rest: Iterator[tuple[Any, Command[Any]]] | None = None
        """Of a ``Many``: its requests that are not carried out yet."""
        self._key: Any = None
        self._answers: list[tuple[Any, Any]] = []
        self._resume(lambda: next(operation))

    def __repr__(self) -> str:
        return f"<{self.what}: {self.result!r}>" if self.done else f"<{self.what}, under way>"

    def advance(self, carry: Carry, *, lost: bool = False, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Carries the next request out. ``lost``: its first answer is, and it is sent again as a driver would;
        ``meanwhile`` happens between the two.
        """
        request = self.request
        if self.done:
            return
        if request is None:
            self._resume(lambda: self._operation.send(None))
            return
        answer = carry(request)
        if lost:
            meanwhile()
            request.in_doubt = True
            answer = carry(request.after_loss())
        if self._rest is not None:
            self._answers.append((self._key, answer))
            self._key, self.request = next(self._rest, (None, None))
            if self.request is None:
                self._resume(lambda: self._operation.send(self._answers))
        elif isinstance(answer, ShardqError):
            self._resume(lambda: self._operation.throw(answer))
        else:
            self._resume(lambda: self._operation.send(answer))

    def _resume(self, go: Callable[[], Step]) -> None:
        try:
            while True:
                step = go()
                self.request = self._rest = None
                if isinstance(step, Confirm):
                    go = partial(self._operation.send, self._confirm(step))
                    continue
                if isinstance(step, Command):
                    self.request = step
                elif isinstance(step, Many):
                    self._answers, self._rest = [], iter(step.pairs)
                    self._key, self.request = next(self._rest, (None, None))
                    if self.request is None:
                        go = lambda: self._operation.send([])  # noqa: E731
                        continue
                return
        except StopIteration as stop:
            self.done, self.result = True, stop.value
        except ShardqError as exc:
            self.done, self.result = True, exc
