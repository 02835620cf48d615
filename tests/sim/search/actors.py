"""One operation of a search, as far as it has come: which answers it got. Generators can't be copied, so an operation
at a state is made anew, and given the same answers again; it is a function of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardq.core.calls.request import Call, Command
from shardq.core.operation import Confirm, Many, Operation, Pause
from shardq.errors import ShardqError, Unanswered

Make = Callable[[], Operation[Any]]

MOST_PAUSES = 50
"""Pauses in a row after which an operation waits for somebody who never comes."""


class Given(NamedTuple):
    """One thing that an operation was given: the raw answer to one of its open requests."""

    batch: int
    """The number of those that were open together."""
    request: int
    """Its number among these."""
    raw: Any
    doubted: bool
    """True if an answer to it was lost before."""
    mark: int
    """The hash of the answer."""


def given(batch: int, request: int, raw: Any, *, doubted: bool) -> Given:
    return Given(batch, request, raw, doubted, hash(_hashable(raw)))


def _hashable(raw: Any) -> Any:
    if isinstance(raw, list):
        return tuple(map(_hashable, raw))
    return raw if raw is None or isinstance(raw, bytes | int) else repr(raw)


@dataclass
class Stand:
    """Where an operation stands."""

    open: dict[int, Command[Any]] = field(default_factory=dict)
    """Its requests that are not answered, by their numbers."""
    batch: int = 0
    """How many times it has had some."""
    is_over: bool = False
    result: Any = None
    """What it came to: a value, or its ShardqError."""
    requests: int = 0


def stand_of(make: Make, so_far: tuple[Given, ...], doubted: frozenset[int]) -> Stand:
    """Carries an operation on by what it was given. ``doubted``: the open requests of which an answer was lost."""
    return _Carried(make(), so_far, doubted).stand


class _Carried:
    def __init__(self, operation: Operation[Any], so_far: tuple[Given, ...], doubted: frozenset[int]) -> None:
        self.stand = Stand()
        self._operation = operation
        self._keys: list[Any] = []
        self._results: dict[int, tuple[Any, Any]] = {}
        self._is_many = False
        self._go_on(lambda: next(operation))
        for each in so_far:
            self._give(each)
        for number in doubted & self.stand.open.keys():
            self.stand.open[number] = self.stand.open[number].after_loss()

    def _give(self, given: Given) -> None:
        stand = self.stand
        request = stand.open.pop(given.request)
        stand.requests += 1
        if given.doubted:
            original, request = request, request.after_loss()
            original.in_doubt = True
        result: Any
        if given.raw is LOST:
            result = Unanswered("its answer was lost")
            request.in_doubt = True
        else:
            try:
                result = request.decode(given.raw)
            except ShardqError as exc:
                result = exc
        if self._is_many:
            # in the order of the requests, whatever the order of the answers: so states are fewer
            self._results[given.request] = (self._keys[given.request], result)
            if not stand.open:
                results = [self._results[number] for number in sorted(self._results)]
                self._go_on(lambda: self._operation.send(results))
        elif isinstance(result, ShardqError):
            self._go_on(lambda: self._operation.throw(result))
        else:
            self._go_on(lambda: self._operation.send(result))

    def _go_on(self, advance: Callable[[], Any]) -> None:
        operation, stand = self._operation, self.stand
        for _ in range(MOST_PAUSES):
            try:
                step = advance()
            except StopIteration as stop:
                stand.is_over, stand.result = True, stop.value
                return
            except ShardqError as exc:
                stand.is_over, stand.result = True, exc
                return
            self._results, self._is_many = {}, isinstance(step, Many)
            stand.batch += 1
            if isinstance(step, Command):
                stand.open = {0: step}
                return
            if isinstance(step, Many):
                pairs = list(step.pairs)
                self._keys = [key for key, _ in pairs]
                stand.open = {number: request for number, (_, request) in enumerate(pairs)}
                if pairs:
                    return
                advance = _sender(operation, [])
            elif isinstance(step, Confirm):
                advance = _sender(operation, {seal.slot: "one" for seal in step.seals})
            else:
                assert isinstance(step, Pause)
                advance = _sender(operation, None)
        raise AssertionError("it waits for ever")


def _sender(operation: Operation[Any], value: Any) -> Callable[[], Any]:
    return lambda: operation.send(value)


class _Lost:
    def __repr__(self) -> str:
        return "lost"


LOST: Any = _Lost()
"""In place of a raw answer: it was lost, and the time is over."""


def shown(request: Command[Any]) -> str:
    """A request in a line."""
    words = request.words[2:] if isinstance(request, Call) else request.words
    name = f"{request.script.name} " if isinstance(request, Call) else ""
    where = request.keys[0].partition("}")[0].rpartition(":")[2] if isinstance(request, Call) else ""
    text = " ".join(word.decode("latin-1") if isinstance(word, bytes) else str(word) for word in words)
    return f"{name}{where} {text}{' (again)' if request.in_doubt else ''}"[:160]
