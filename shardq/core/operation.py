"""Operations of several dependent trips, written once for both drivers.

An operation is a generator. It yields a request and is resumed with its result, or with its ShardqError thrown in;
or it yields ``Many`` requests under keys of its own and gets a list of (key, result or error); or a ``Confirm``, and
gets what replicas have; or ``AskSentinels``; or a ``Pause``. ``run`` drives it on the sync driver, ``arun`` on the
asyncio one; they differ in the awaiting only. What is done when a shard refuses a request's topology is in
``topology_recovery``.

A command of a user has one ``deadline``, made when it begins: each trip of its operations gets what is left, and none
begins after it. Work in the background has a ``timeout`` for each trip instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.drivers.conversations import adrive, drive
from shardq.core.drivers.owned import BegunCall, answered
from shardq.errors import EngineClosed, ShardqError

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.core.drivers.retry import Deadline, Spare
    from shardq.core.drivers.sync import Driver

    Sent = tuple[Any, Command[Any], BegunCall[Any] | None]

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Many(Generic[K, T]):
    """Requests that do not wait for each other, each under a key, which comes back with its result.

    A dict by key, or pairs of key and request, taken lazily: later ones are made while earlier ones run.
    """

    requests: dict[K, Command[T]] | dict[K, Call[T]] | Iterable[tuple[K, Command[T]]]
    spare: Spare | None = None  # when requests are given up although they have time
    told: Callable[[K, T | ShardqError], None] | None = None  # called at each answer; ``requests`` may have more then

    @property
    def pairs(self) -> Iterable[tuple[K, Command[T]]]:
        requests = self.requests
        return requests.items() if isinstance(requests, dict) else requests

    @property
    def alone(self) -> tuple[K, Command[T]] | None:
        """The only request, if there is one and nothing but its answer ends it. Most claims and acks are such, and need
        no loop over the nodes.
        """
        requests = self.requests
        if not isinstance(requests, dict | list) or len(requests) != 1:
            return None
        if self.spare is not None and self.spare.worth is None:
            return None
        (alone,) = requests.items() if isinstance(requests, dict) else requests
        return alone


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Confirm:
    """Asks if the replicas of some nodes have everything that was written until now. The answer is, by slot, the name
    of the history that the node's writes belong to, or None while a replica is behind. After a failover or a restart
    the history has another name: what was written before may be lost. A node without replicas waits for none.
    """

    seals: Sequence[Call[None]]  # a write to wait for, in each slot that is asked for
    disk: bool = False  # true to ask if the node's disk has it, too, where it keeps an append-only file


@dataclass(frozen=True, slots=True)
class AskSentinels:
    """Asks all sentinels for the master. The answer is an ``election.Survey``."""

    ask: Callable[[float], Any]  # the driver's ``survey``, which is told the time until which it may ask


Histories = dict[int, str | None]

Step = Command[Any] | Many[Any, Any] | Confirm | AskSentinels | Pause

Operation = Generator[Step, Any, T]


class Carrier(Protocol):
    """Carries requests for ``run``: the sync driver, or what stands in its place."""

    def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T: ...

    def call_all(
        self,
        calls: Iterable[tuple[K, Command[T]]],
        *,
        timeout: float | None = None,
        deadline: Deadline[K] = None,
        spare: Spare | None = None,
    ) -> Iterator[tuple[K, T | ShardqError]]: ...

    def confirm(self, seals: Sequence[Call[None]], deadline: float = math.inf, *, disk: bool = False) -> Histories: ...


def run(driver: Carrier, operation: Operation[T], timeout: float | None = None, *, deadline: float | None = None) -> T:
    """Carries an operation out before the ``deadline`` (by the monotonic clock), which is the end of a command's
    ``timeout``. Without it, the timeout bounds each trip, of which ``Many`` requests are one. None is the driver's
    default.
    """
    # As ``drive`` does it, but for the frames: most operations are one call.
    try:
        step = next(operation)
        while True:
            try:
                if isinstance(step, Command):
                    outcome = driver.call(step, timeout, deadline)
                else:
                    outcome = _carry_out(driver, timeout, deadline, step)
            except ShardqError as exc:
                step = operation.throw(exc)
            else:
                step = operation.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration


def _carry_out(driver: Carrier, timeout: float | None, deadline: float | None, step: Step) -> Any:
    if isinstance(step, Command):
        return driver.call(step, timeout, deadline)
    if isinstance(step, Confirm):
        return driver.confirm(step.seals, math.inf if deadline is None else deadline, disk=step.disk)
    if isinstance(step, Many):
        return _many(driver, timeout, deadline, step)
    if isinstance(step, AskSentinels):
        return step.ask(_end(timeout, deadline))
    return time.sleep(_pause_s(step, deadline))


def _many(driver: Carrier, timeout: float | None, deadline: float | None, many: Many[K, Any]) -> list[tuple[K, Any]]:
    alone = many.alone
    if alone is None:
        answers = driver.call_all(many.pairs, timeout=timeout, deadline=deadline, spare=many.spare)
        if many.told is None:
            return list(answers)
        return [_noted(many.told, answer) for answer in answers]
    key, call = alone
    try:
        return [(key, driver.call(call, timeout, deadline))]
    except ShardqError as exc:
        return [(key, _told(exc))]


def _noted(told: Callable[[K, Any], None], answer: tuple[K, Any]) -> tuple[K, Any]:
    told(*answer)
    return answer


def _end(timeout: float | None, deadline: float | None) -> float:
    if deadline is not None:
        return deadline
    return math.inf if timeout is None else time.monotonic() + timeout


def _pause_s(pause: Pause, deadline: float | None) -> float:
    """A pause leaves the trip after it half of the time."""
    return pause.seconds if deadline is None else max(0.0, min(pause.seconds, (deadline - time.monotonic()) / 2))


class Begun(Generic[T]):
    """An operation whose first requests are sent. ``finish`` reads their answers and carries out the rest."""

    def __init__(self, driver: Driver, operation: Operation[T], step: Many[Any, Any], sent: Sequence[Sent]) -> None:
        self._driver = driver
        self._operation = operation
        self._step = step
        self._sent = sent

    def finish(self, deadline: float) -> T:
        """Called once, in any thread."""
        return drive(self._operation, partial(self._carry_out, deadline), self._step)

    def _carry_out(self, deadline: float, step: Step) -> Any:
        return self._answers(deadline) if step is self._step else _carry_out(self._driver, None, deadline, step)

    def _answers(self, deadline: float) -> list[tuple[Any, Any]]:
        """The answers of what was sent first, then of the rest."""
        spare, until = self._driver.spare(self._step.spare), deadline
        answers: list[tuple[Any, Any]] = []
        sent = {begun: key for key, _, begun in self._sent if begun is not None}
        while sent:
            for each in answered(list(sent), until):
                answers.append((sent.pop(each), self._answer(partial(self._driver.finish, each, until))))
                if spare is not None and spare.is_worth(answers[-1][1]):
                    until = min(until, spare.until)
        for key, call, begun in self._sent:
            if begun is None:
                answers.append((key, self._answer(partial(self._driver.call, call, None, until))))
        return answers

    def _answer(self, get: Callable[[], Any]) -> Any:
        try:
            return get()
        except ShardqError as exc:
            return _told(exc)


def begin(driver: Driver, operation: Operation[T]) -> Begun[T] | None:
    """Sends the first requests of an operation that begins with ``Many``. None: nothing was sent, and it is over."""
    step = next(operation, None)
    if isinstance(step, Many):
        pairs = list(step.pairs)
        if pairs and (first := driver.begin(pairs[0][1])) is not None:
            sent = [(key, call, driver.begin(call)) for key, call in pairs[1:]]
            return Begun(driver, operation, step, [(*pairs[0], first), *sent])
    operation.close()
    return None


# The bound of each trip is handed on to the driver: cancelling from outside would not tell sent from unsent.
def arun(
    driver: AsyncDriver, operation: Operation[T], timeout: float | None = None, *, deadline: float | None = None
) -> Coroutine[Any, Any, T]:
    """The same on asyncio."""
    return adrive(operation, partial(_acarry_out, driver, timeout, deadline))


def _acarry_out(driver: AsyncDriver, timeout: float | None, deadline: float | None, step: Step) -> Awaitable[Any]:
    if isinstance(step, Command):
        return driver.call(step, timeout, deadline)
    if isinstance(step, Confirm):
        return driver.confirm(step.seals, math.inf if deadline is None else deadline, disk=step.disk)
    if isinstance(step, Many):
        return _amany(driver, timeout, deadline, step)
    if isinstance(step, AskSentinels):
        asked: Awaitable[Any] = step.ask(_end(timeout, deadline))
        return asked
    # Imported here, so that programs of threads need not load it.
    import asyncio

    return asyncio.sleep(_pause_s(step, deadline))


async def _amany(
    driver: AsyncDriver, timeout: float | None, deadline: float | None, many: Many[K, Any]
) -> list[tuple[K, Any]]:
    alone = many.alone
    if alone is None:
        answers = driver.call_all(many.pairs, timeout=timeout, deadline=deadline, spare=many.spare)
        if many.told is None:
            return [answer async for answer in answers]
        return [_noted(many.told, answer) async for answer in answers]
    key, call = alone
    try:
        return [(key, await driver.call(call, timeout, deadline))]
    except ShardqError as exc:
        return [(key, _told(exc))]


def bounded(steps: Operation[T], within_s: float) -> Operation[T]:
    """The operation, but each of its requests is given up after so many seconds from now on, although the command that
    it is a part of has time.
    """
    until = time.monotonic() + within_s

    def bound(request: Command[Any]) -> Command[Any]:
        left = max(0.0, until - time.monotonic())
        request.retry_for_s = left if request.retry_for_s is None else min(left, request.retry_for_s)
        request.within_s = left
        return request

    def carry_on(step: Step) -> Operation[Any]:
        if isinstance(step, Command):
            return (yield bound(step))
        if isinstance(step, Many):
            return (yield Many([(key, bound(request)) for key, request in step.pairs], step.spare))
        return (yield step)

    return (yield from _through(steps, carry_on))


def _through(steps: Operation[T], carry_on: Callable[[Step], Operation[Any]]) -> Operation[T]:
    """Carries an operation out by what each of its steps is made into."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = yield from carry_on(step)
            except ShardqError as exc:
                step = steps.throw(exc)
            else:
                step = steps.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # a generator's value is untyped at StopIteration


def values(answers: Iterable[tuple[K, T | ShardqError]]) -> dict[K, T]:
    """The results of requests made together, by key. Raises the first error if there is one."""
    results: dict[K, T] = {}
    for key, result in answers:
        if isinstance(result, ShardqError):
            raise result
        results[key] = result
    return results


def succeeded(answers: Iterable[tuple[K, T | ShardqError]]) -> dict[K, T]:
    """The results of the requests that got one, by key."""
    return {key: result for key, result in answers if not isinstance(result, ShardqError)}


def _told(error: ShardqError) -> ShardqError:
    """The result of one request among many. A closed engine concerns all of them, and is raised."""
    if isinstance(error, EngineClosed):
        raise error
    return error
