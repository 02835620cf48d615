"""Assertions about the tasks of an engine, and ``drain``. With an ``AsyncEngine`` their results are awaited.

Under a virtual clock they look at once: what is due by now has been dispatched. Otherwise pollers may need a moment,
and an assertion that something is there waits for it.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, overload

from shardq.core.calls.request import Command
from shardq.core.consumer.claiming import claim
from shardq.core.consumer.claims import ClaimNotes
from shardq.core.consumer.settling import acks_of, settle
from shardq.core.model.checks import duration_ms
from shardq.core.model.ids import quoted_topic
from shardq.core.model.task import Delivery, State
from shardq.core.operation import Many, Operation, Pause, arun, run, values
from shardq.engine.aio import AsyncEngine
from shardq.engine.base import EngineBase, Inside
from shardq.engine.sync import Engine
from shardq.errors import InvalidOption
from shardq.outbox.rows import clocks
from shardq.testing.adoption import adopted_of
from shardq.testing.stored import StoredTask, read, shown, table
from shardq.testing.virtual import EPOCH, US, instant_us

T = TypeVar("T")

PATIENCE_S = 10.0
"""The time for which an assertion waits for pollers, in real time."""

LOOK_S = 0.02

SLACK_S = 30.0
"""In real time this may have passed between a push and an assertion about its delay, on a busy machine."""


class _Anything:
    """Equal to every payload."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "anything"


ANYTHING = _Anything()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The task that an assertion looks for."""

    states: tuple[State, ...]
    topic: str | None = None
    payload: Any = ANYTHING
    id: str | None = None
    due: tuple[dt.datetime, dt.datetime] | None = None
    """The earliest and the latest instant."""
    payloads: tuple[Any, ...] = ()
    """The payload, and what the codec makes of it: a tuple comes back as a list."""

    def of(self, engine: EngineBase) -> _Wanted:
        codec = Inside(engine).options.codec
        try:
            return replace(self, payloads=(self.payload, codec.decode(codec.encode(self.payload))))
        except Exception:  # noqa: BLE001  it need not be a payload, as long as it is equal to one
            return replace(self, payloads=(self.payload,))

    def matches(self, task: StoredTask) -> bool:
        if task.state not in self.states or (self.topic is not None and task.topic != self.topic):
            return False
        if self.id is not None and self.id not in (task.id, task.id.partition("/")[2]):
            return False
        if self.due is not None:
            earliest, latest = self.due
            if task.due is None or not earliest <= task.due <= latest:
                return False
        return any(task.payload == each for each in self.payloads)

    def __str__(self) -> str:
        words = [" or ".join(self.states), "task"]
        if self.topic is not None:
            words.append(f"of topic {quoted_topic(self.topic)}")
        if self.id is not None:
            words.append(f"with id {self.id!r}")
        if self.payload is not ANYTHING:
            words.append(f"with payload {self.payload!r}")
        if self.due is not None:
            earliest, latest = self.due
            words.append(
                f"due at {shown(latest)}" if earliest == latest else f"due {shown(earliest)} … {shown(latest)}"
            )
        return " ".join(words)


# ---- assertions


@overload
def assert_ready(
    engine: Engine, payload: Any = ANYTHING, *, topic: str | None = None, id: str | None = None
) -> StoredTask: ...


@overload
def assert_ready(
    engine: AsyncEngine, payload: Any = ANYTHING, *, topic: str | None = None, id: str | None = None
) -> Coroutine[Any, Any, StoredTask]: ...


def assert_ready(
    engine: EngineBase, payload: Any = ANYTHING, *, topic: str | None = None, id: str | None = None
) -> Any:
    """Asserts that a task is ready: due, and waiting for a consumer. Returns the first that is.

    >>> shardq.testing.assert_ready(engine, payload="hi")
    """
    __tracebackhide__ = True
    return _asserted(engine, _Wanted(("ready",), topic, payload, id))


@overload
def assert_pushed(
    engine: Engine,
    topic: str | None = None,
    payload: Any = ANYTHING,
    *,
    id: str | None = None,
    due: dt.datetime | None = None,
    delay: float | dt.timedelta | None = None,
    within: float | dt.timedelta | None = None,
) -> StoredTask: ...


@overload
def assert_pushed(
    engine: AsyncEngine,
    topic: str | None = None,
    payload: Any = ANYTHING,
    *,
    id: str | None = None,
    due: dt.datetime | None = None,
    delay: float | dt.timedelta | None = None,
    within: float | dt.timedelta | None = None,
) -> Coroutine[Any, Any, StoredTask]: ...


def assert_pushed(
    engine: EngineBase,
    topic: str | None = None,
    payload: Any = ANYTHING,
    *,
    id: str | None = None,
    due: dt.datetime | None = None,
    delay: float | dt.timedelta | None = None,
    within: float | dt.timedelta | None = None,
) -> Any:
    """Asserts that a task is scheduled or ready. Returns the first that is.

    ``due``: it is scheduled for that instant; ``delay``: for so many seconds from now. ``within``: or for up to so much
    less; by default nothing under a virtual clock, and 30 seconds in real time.

    >>> shardq.testing.assert_pushed(engine, "mail", {"to": "ann"}, delay=3600)
    """
    __tracebackhide__ = True
    if due is not None and delay is not None:
        raise InvalidOption("give due or delay, not both")
    _check(engine)
    states: tuple[State, ...] = ("scheduled", "ready")
    window = None
    if due is not None or delay is not None:
        states = ("scheduled",)
        latest = _now(engine) + dt.timedelta(milliseconds=_ms(delay, "delay")) if due is None else due
        latest = EPOCH + instant_us(latest) * US
        slack_ms = (0 if _is_virtual(engine) else SLACK_S * 1000) if within is None else _ms(within, "within")
        window = latest - dt.timedelta(milliseconds=slack_ms), latest
    return _asserted(engine, _Wanted(states, topic, payload, id, window))


@overload
def assert_not_pushed(
    engine: Engine, topic: str | None = None, payload: Any = ANYTHING, *, id: str | None = None
) -> None: ...


@overload
def assert_not_pushed(
    engine: AsyncEngine, topic: str | None = None, payload: Any = ANYTHING, *, id: str | None = None
) -> Coroutine[Any, Any, None]: ...


def assert_not_pushed(
    engine: EngineBase, topic: str | None = None, payload: Any = ANYTHING, *, id: str | None = None
) -> Any:
    """Asserts that no such task is scheduled or ready.

    >>> shardq.testing.assert_not_pushed(engine, "invoice")
    """
    __tracebackhide__ = True
    wanted = _Wanted(("scheduled", "ready"), topic, payload, id)
    return _judged(engine, _look(engine, wanted, patience_s=0.0), partial(_absent, wanted))


# ---- looking


@overload
def tasks(engine: Engine, *, topic: str | None = None) -> list[StoredTask]: ...


@overload
def tasks(engine: AsyncEngine, *, topic: str | None = None) -> Coroutine[Any, Any, list[StoredTask]]: ...


def tasks(engine: EngineBase, *, topic: str | None = None) -> Any:
    """Returns all tasks of an engine, or those of a topic: ready ones, leased ones, scheduled ones by their due times,
    and dead ones.

    >>> for task in shardq.testing.tasks(engine):
    ...     print(task.state, task.due, task.payload)
    """

    def steps() -> Operation[list[StoredTask]]:
        yield from _caught_up(engine)
        found = yield from read(Inside(engine).cache, Inside(engine).options.codec)
        return [task for task in found if topic is None or task.topic == topic]

    return _judged(engine, steps, lambda found: found)


@overload
def drain(engine: Engine, *, topic: str | None = None) -> list[Delivery]: ...


@overload
def drain(engine: AsyncEngine, *, topic: str | None = None) -> Coroutine[Any, Any, list[Delivery]]: ...


def drain(engine: EngineBase, *, topic: str | None = None) -> Any:
    """Claims and acks everything that is ready, or what is ready of a topic. Returns the deliveries.

    >>> [delivery] = shardq.testing.drain(engine)
    """

    def steps() -> Operation[list[Delivery]]:
        yield from _caught_up(engine)
        cache = Inside(engine).cache
        topics = {"": None} if topic is None else {topic: None}
        if topic is None:
            calls = {keys.shard: Command(keys.slot, ("HKEYS", keys.topics), list) for keys in cache.span()}
            known: dict[int, list[bytes]] = values((yield Many(calls)))
            topics |= dict.fromkeys(sorted(name.decode() for names in known.values() for name in names))
        claims, deliveries = Inside(engine).claims(list(topics)), list[Delivery]()
        while some := (yield from claim(claims, ClaimNotes(), 1000, cache.topology.span())):
            yield from settle(claims, acks_of(some))
            deliveries += some
        return deliveries

    return _judged(engine, steps, lambda found: found)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The tasks that an assertion saw."""

    now: dt.datetime
    matching: Sequence[StoredTask]
    all: Sequence[StoredTask]


def _look(engine: EngineBase, wanted: _Wanted, *, patience_s: float) -> Callable[[], Operation[_Seen]]:
    """Looks until there is a task as wanted, but no longer than ``patience_s``."""

    def steps() -> Operation[_Seen]:
        until, sought = time.monotonic() + patience_s, wanted.of(engine)
        while True:
            yield from _caught_up(engine)
            found = yield from read(Inside(engine).cache, Inside(engine).options.codec)
            now = _now(engine)
            matching = [task for task in found if sought.matches(task)]
            if matching or time.monotonic() >= until:
                return _Seen(now, matching, found)
            yield Pause(LOOK_S)

    return steps


def _caught_up(engine: EngineBase) -> Operation[None]:
    """Dispatches what is due, as pollers would have done."""
    adopted = adopted_of(engine)
    if adopted is not None and not adopted.real_time:
        adopted.move_rows()
        adopted.pollers.doubt()
        yield from adopted.pollers.serve_schedules()
        yield from adopted.pollers.catch_up()


def _asserted(engine: EngineBase, wanted: _Wanted) -> Any:
    __tracebackhide__ = True
    _check(engine)
    patience_s = 0.0 if _is_virtual(engine) else PATIENCE_S
    return _judged(engine, _look(engine, wanted, patience_s=patience_s), partial(_present, wanted, _hint(engine)))


def _hint(engine: EngineBase) -> str:
    """Says that a clock is moved by which the engine does not go."""
    if adopted_of(engine) is not None or len(clocks) == 1:
        return ""
    return f" (the engine {engine.name!r} goes by its server's clock, not by the test's: give it to clock.adopt())"


def _present(wanted: _Wanted, hint: str, seen: _Seen) -> StoredTask:
    __tracebackhide__ = True
    if not seen.matching:
        what = f"there is no {wanted}{hint}"
        raise AssertionError(f"{what}; at {shown(seen.now)} the engine has:\n{table(seen.all, seen.now)}")
    return seen.matching[0]


def _absent(wanted: _Wanted, seen: _Seen) -> None:
    __tracebackhide__ = True
    if seen.matching:
        rest = [task for task in seen.all if task not in seen.matching]
        raise AssertionError(
            f"there should be no {wanted}, and there is; at {shown(seen.now)} the engine has, this one first:\n"
            f"{table([*seen.matching, *rest], seen.now)}"
        )


def _judged(engine: EngineBase, steps: Callable[[], Operation[Any]], judge: Callable[[Any], Any]) -> Any:
    """Carries an operation out on either engine, and judges its result where the caller sees it."""
    __tracebackhide__ = True
    _check(engine)
    if isinstance(engine, AsyncEngine):
        return _awaited(engine, steps, judge)
    assert isinstance(engine, Engine)
    if adopted_of(engine) is not None:
        engine.start()
    return judge(run(Inside(engine).open_driver(), steps()))


async def _awaited(engine: AsyncEngine, steps: Callable[[], Operation[Any]], judge: Callable[[Any], Any]) -> Any:
    __tracebackhide__ = True
    if adopted_of(engine) is not None:
        await engine.start()
    driver = await Inside(engine).open_driver()
    return judge(await arun(driver, steps()))


def _check(engine: object) -> None:
    if not isinstance(engine, Engine | AsyncEngine):
        raise InvalidOption(f"{engine!r} is no engine; give an Engine or an AsyncEngine")


def _now(engine: EngineBase) -> dt.datetime:
    adopted = adopted_of(engine)
    return dt.datetime.now(dt.UTC) if adopted is None else adopted.now


def _is_virtual(engine: EngineBase) -> bool:
    adopted = adopted_of(engine)
    return adopted is not None and not adopted.real_time


def _ms(value: float | dt.timedelta | None, name: str) -> int:
    return 0 if not value else duration_ms(value, name)
