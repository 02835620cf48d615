"""Assertions about the tasks of an engine, and ``drain``. With an ``AsyncEngine`` their results are awaited.

Under a virtual clock they look at once: what is due by now has been dispatched. Otherwise pollers may need a moment,
and an assertion that something is there waits for it.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from shardq import AsyncEngine, Engine
from shardq.core.calls import observe
from shardq.core.calls.lane_control import FAR_MS
from shardq.core.calls.request import Command
from shardq.core.consumer.claim_state import ClaimNotes
from shardq.core.consumer.claiming import claim
from shardq.core.consumer.settling import acks_of, settle
from shardq.core.layout.lanes import unique_of
from shardq.core.model.attempts import parted
from shardq.core.model.checks import clocks, duration_ms
from shardq.core.model.ids import quoted_topic, topic_of
from shardq.core.model.record import Codec, decode_record, encode_record
from shardq.core.model.task import Delivery, State
from shardq.core.operation import Many, Operation, Pause, arun, run, values
from shardq.engine.around import EngineAccess, EngineBase
from shardq.errors import InvalidOption, PayloadNotDecodable
from shardq.testing.adoption import adopted_of
from shardq.testing.virtual import EPOCH, US, instant_us

P = ParamSpec("P")
T = TypeVar("T")
Found = TypeVar("Found", covariant=True)

PATIENCE_S = 10.0
"""The time for which an assertion waits for pollers, in real time."""

LOOK_S = 0.02

MOST_SHOWN = 30
MOST_PAYLOAD = 60

_ORDER = {"ready": 0, "leased": 1, "held": 2, "scheduled": 3, "dead": 4}

SLACK_S = 30.0
"""In real time this may have passed between a push and an assertion about its delay, on a busy machine."""


@dataclass(frozen=True, slots=True)
class StoredTask:
    """One task of an engine, as ``tasks`` and the assertions return it.

    >>> task = shardq.testing.assert_pushed(engine, "mail")
    >>> task.state, task.due, task.payload
    """

    id: str
    topic: str
    state: State
    due: dt.datetime | None
    """None unless it is scheduled or held."""
    payload: Any
    """A PayloadNotDecodable where it can't be decoded."""
    headers: Mapping[str, str] = field(default_factory=dict)
    max_attempts: int | None = None
    reason: str | None = None
    """Why it is dead."""
    url: str | None = None
    """The URL to which it is posted, as a webhook."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The task that an assertion looks for."""

    states: tuple[State, ...]
    topic: str | None
    payload: Any
    """``...``: any."""
    id: str | None
    due: tuple[dt.datetime, dt.datetime] | None = None
    """The earliest and the latest instant."""

    def among(self, tasks: Sequence[StoredTask], codec: Codec) -> list[StoredTask]:
        payloads = [self.payload]
        with suppress(Exception):  # it need not be a payload, as long as it is equal to one
            record = encode_record(codec, self.payload, id="any")
            payloads.append(decode_record(record, own=codec, id="any").payload)  # a tuple comes back as a list
        return [task for task in tasks if self._is(task) and (self.payload is ... or task.payload in payloads)]

    def _is(self, task: StoredTask) -> bool:
        if task.state not in self.states or (self.topic is not None and task.topic != self.topic):
            return False
        if self.id is not None and self.id not in (task.id, unique_of(task.id)):
            return False
        return self.due is None or (task.due is not None and self.due[0] <= task.due <= self.due[1])

    def __str__(self) -> str:
        words = [" or ".join(", ".join(self.states).rsplit(", ", 1)), "task"]
        if self.topic is not None:
            words.append(f"of topic {quoted_topic(self.topic)}")
        if self.id is not None:
            words.append(f"with id {self.id!r}")
        if self.payload is not ...:
            words.append(f"with payload {self.payload!r}")
        if self.due is not None:
            earliest, latest = map(_instant, self.due)
            words.append(f"due at {latest}" if earliest == latest else f"due {earliest} … {latest}")
        return " ".join(words)


# ---- on either engine


class _OnEither(Protocol[P, Found]):
    @overload
    def __call__(self, engine: Engine, *args: P.args, **options: P.kwargs) -> Found: ...

    @overload
    def __call__(self, engine: AsyncEngine, *args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, Found]: ...


def _on_either(steps_of: Callable[Concatenate[EngineBase, P], Operation[T]]) -> _OnEither[P, T]:
    """Carries an operation out on the engine that is given: at once, or as a coroutine. A failed assertion is raised
    without the frames of the operation, so that pytest shows the test.
    """

    def carried_out(engine: Engine, steps: Operation[T]) -> T:
        __tracebackhide__ = True
        if adopted_of(engine) is not None:
            engine.start()
        try:
            return run(EngineAccess(engine).open_driver(), steps)
        except AssertionError as exc:
            raise exc.with_traceback(None) from None

    async def awaited(engine: AsyncEngine, steps: Operation[T]) -> T:
        __tracebackhide__ = True
        if adopted_of(engine) is not None:
            await engine.start()
        try:
            return await arun(await EngineAccess(engine).open_driver(), steps)
        except AssertionError as exc:
            raise exc.with_traceback(None) from None

    @wraps(steps_of)
    def call(engine: Any, *args: P.args, **options: P.kwargs) -> Any:
        __tracebackhide__ = True
        if not isinstance(engine, Engine | AsyncEngine):
            raise InvalidOption(f"{engine!r} is not an engine; give an Engine or an AsyncEngine")
        steps = steps_of(engine, *args, **options)
        return awaited(engine, steps) if isinstance(engine, AsyncEngine) else carried_out(engine, steps)

    return call


# ---- assertions


@_on_either
def assert_ready(
    engine: EngineBase, payload: Any = ..., *, topic: str | None = None, id: str | None = None
) -> Operation[StoredTask]:
    """Asserts that a task is ready: due, and waiting for a consumer. Returns the first that is.

    >>> shardq.testing.assert_ready(engine, payload="hi")
    """
    return _present(engine, _Wanted(("ready",), topic, payload, id))


@_on_either
def assert_pushed(
    engine: EngineBase,
    topic: str | None = None,
    payload: Any = ...,
    *,
    id: str | None = None,
    due: dt.datetime | None = None,
    delay: float | dt.timedelta | None = None,
    within: float | dt.timedelta | None = None,
) -> Operation[StoredTask]:
    """Asserts that a task is scheduled, held or ready. Returns the first that is.

    ``due``: it is scheduled for that instant; ``delay``: for so many seconds from now. ``within``: or for up to so much
    less; by default nothing under a virtual clock, and 30 seconds in real time.

    >>> shardq.testing.assert_pushed(engine, "mail", {"to": "ann"}, delay=3600)
    """
    if due is not None and delay is not None:
        raise InvalidOption("give due or delay, not both")
    if due is None and delay is None:
        return _present(engine, _Wanted(("scheduled", "held", "ready"), topic, payload, id))
    latest = _now(engine) + dt.timedelta(milliseconds=_ms(delay, "delay")) if due is None else due
    latest = EPOCH + instant_us(latest) * US
    slack_ms = (0 if _is_virtual(engine) else SLACK_S * 1000) if within is None else _ms(within, "within")
    between = latest - dt.timedelta(milliseconds=slack_ms), latest
    return _present(engine, _Wanted(("scheduled",), topic, payload, id, between))


@_on_either
def assert_not_pushed(
    engine: EngineBase, topic: str | None = None, payload: Any = ..., *, id: str | None = None
) -> Operation[None]:
    """Asserts that no such task is scheduled, held or ready.

    >>> shardq.testing.assert_not_pushed(engine, "invoice")
    """
    wanted = _Wanted(("scheduled", "held", "ready"), topic, payload, id)
    matching, found = yield from _look(engine, wanted, patience_s=0.0)
    if matching:
        now, rest = _now(engine), [task for task in found if task not in matching]
        raise AssertionError(
            f"there should be no {wanted}, and there is; at {_instant(now)} the engine has, this one first:\n"
            f"{_table([*matching, *rest], now)}"
        )


@_on_either
def tasks(engine: EngineBase, *, topic: str | None = None) -> Operation[list[StoredTask]]:
    """Returns all tasks of an engine, or those of a topic: ready ones, leased ones, held ones, scheduled ones by their
    due times, and dead ones.

    >>> for task in shardq.testing.tasks(engine):
    ...     print(task.state, task.due, task.payload)
    """
    yield from _caught_up(engine)
    found = yield from _read(engine)
    return [task for task in found if topic is None or task.topic == topic]


@_on_either
def drain(engine: EngineBase, *, topic: str | None = None) -> Operation[list[Delivery]]:
    """Claims and acks everything that is ready, or what is ready of a topic. Returns the deliveries.

    >>> [delivery] = shardq.testing.drain(engine)
    """
    yield from _caught_up(engine)
    cache, topics = EngineAccess(engine).cache, [topic or ""]
    if topic is None:
        known = values((yield Many({keys.shard: observe.dispatched(keys) for keys in cache.span()})))
        topics = sorted({"", *(name for names in known.values() for name in names)})
    claims, deliveries = EngineAccess(engine).claims(topics), list[Delivery]()
    while some := (yield from claim(claims, ClaimNotes(), 1000, cache.topology.span())):
        yield from settle(claims, acks_of(some))
        deliveries += some
    return deliveries


def _present(engine: EngineBase, wanted: _Wanted) -> Operation[StoredTask]:
    """Waits for pollers in real time."""
    matching, found = yield from _look(engine, wanted, patience_s=0.0 if _is_virtual(engine) else PATIENCE_S)
    if not matching:
        now = _now(engine)
        raise AssertionError(
            f"there is no {wanted}{_hint(engine)}; at {_instant(now)} the engine has:\n{_table(found, now)}"
        )
    return matching[0]


def _look(
    engine: EngineBase, wanted: _Wanted, *, patience_s: float
) -> Operation[tuple[list[StoredTask], list[StoredTask]]]:
    """Looks until there is a task as wanted, but no longer than ``patience_s``. Returns those, and all tasks."""
    until = time.monotonic() + patience_s
    while True:
        yield from _caught_up(engine)
        found = yield from _read(engine)
        matching = wanted.among(found, EngineAccess(engine).options.codec)
        if matching or time.monotonic() >= until:
            return matching, found
        yield Pause(LOOK_S)


def _caught_up(engine: EngineBase) -> Operation[None]:
    """Dispatches what is due, as pollers would have done."""
    adopted = adopted_of(engine)
    if adopted is not None and not adopted.real_time:
        adopted.move_rows()
        adopted.pollers.doubt()
        yield from adopted.pollers.serve_schedules()
        yield from adopted.pollers.catch_up()


def _hint(engine: EngineBase) -> str:
    """Says that a clock is moved by which the engine does not go."""
    if adopted_of(engine) is not None or len(clocks) == 1:
        return ""
    return f" (the engine {engine.name!r} goes by its server's clock, not by the test's: give it to clock.adopt())"


def _now(engine: EngineBase) -> dt.datetime:
    adopted = adopted_of(engine)
    return dt.datetime.now(dt.UTC) if adopted is None else adopted.now


def _is_virtual(engine: EngineBase) -> bool:
    adopted = adopted_of(engine)
    return adopted is not None and not adopted.real_time


def _ms(value: float | dt.timedelta | None, name: str) -> int:
    return 0 if not value else duration_ms(value, name)


# ---- tasks as they are stored


def _read(engine: EngineBase) -> Operation[list[StoredTask]]:
    """Reads all tasks without claiming them: ready ones first, then leased, held, scheduled by due time, and dead."""
    found: list[StoredTask] = []
    now = _now(engine)
    for keys in EngineAccess(engine).cache.span():
        # In this order, so that a task that is dispatched meanwhile is met in its earlier state. The records come last:
        # a task that is done by then is not met at all.
        reads: list[tuple[str | int, ...]] = [
            ("ZRANGE", key, 0, -1, "WITHSCORES") for key in (keys.due, keys.leased, keys.dead)
        ]
        reads += [("HGETALL", key) for key in (keys.why, keys.task)]
        requests = {at: Command(keys.slot, words, _as_dict) for at, words in enumerate(reads)}
        answers = values((yield Many(requests)))
        due, leased, dead, why, records = (answers[at] for at in requests)
        for id, record in records.items():
            state: State = "scheduled" if id in due else "leased" if id in leased else "dead" if id in dead else "ready"
            due_at = EPOCH + dt.timedelta(milliseconds=float(due[id]) % FAR_MS) if id in due else None
            if due_at is not None and due_at <= now and float(due[id]) >= FAR_MS:
                state = "held"
            reason = parted(why[id].decode(errors="replace"))[0] if id in why else None
            name = id.decode()
            task = StoredTask(name, topic_of(name), state, due_at, None, reason=reason)
            try:
                stored = decode_record(record, own=EngineAccess(engine).options.codec, id=name)
            except PayloadNotDecodable as exc:
                found.append(replace(task, payload=exc))
            else:
                content = stored.content.named()
                del content["tags"]
                found.append(replace(task, payload=stored.payload, **content))
    return sorted(found, key=lambda task: (_ORDER[task.state], task.due or EPOCH, task.id))


def _as_dict(answer: Any) -> dict[bytes, Any]:
    """From either protocol: a map, a list of pairs, or all in one list."""
    if isinstance(answer, dict):
        return answer
    if answer and isinstance(answer[0], list):
        return dict(answer)
    items = iter(answer)
    return dict(zip(items, items, strict=True))


def _table(tasks: Sequence[StoredTask], now: dt.datetime) -> str:
    """The tasks as a table, with their due times from now."""
    if not tasks:
        return "no tasks"
    rows = [("state", "due", "topic", "payload", "id")]
    rows += [
        (task.state, _due(task, now), task.topic or '""', _short(task.payload), task.id) for task in tasks[:MOST_SHOWN]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join((*map(str.ljust, row[:4], widths), row[4])) for row in rows]
    if len(tasks) > MOST_SHOWN:
        lines.append(f"… and {len(tasks) - MOST_SHOWN:,} more")
    return "\n".join(lines)


def _due(task: StoredTask, now: dt.datetime) -> str:
    """The due time, with a length of time like ``in 1d 2:30:00`` and ``0:00:05 ago``; of a dead task its reason."""
    if task.due is None:
        return (task.reason or "").strip().rpartition("\n")[2][:MOST_PAYLOAD] if task.state == "dead" else ""
    away = abs(task.due - now)
    text = f"{away.days}d {away - dt.timedelta(days=away.days)}" if away.days else str(away)
    if away.microseconds:
        text = text[:-3]
    return f"{_instant(task.due)} ({f'{text} ago' if task.due < now else f'in {text}'})"


def _instant(when: dt.datetime) -> str:
    return f"{when.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _short(payload: object) -> str:
    text = repr(payload)
    return text if len(text) <= MOST_PAYLOAD else f"{text[: MOST_PAYLOAD - 1]}…"
