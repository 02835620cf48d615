"""What there is for threads is there for asyncio, with the same names and arguments, or it is said here and in its
docstring why not. Most of it is generated; this is about what is written by hand, too.
"""

from __future__ import annotations

import inspect

import pytest
import sqlalchemy as sa

import shardq
from shardq import AsyncConsumer, AsyncEngine, AsyncResize, AsyncWorker, Consumer, Engine, Resize, Worker
from shardq.features.schedules.handle_aio import AsyncOwnedSchedules, AsyncScheduleHandle
from shardq.features.schedules.handle_sync import OwnedSchedules, ScheduleHandle
from shardq.testing import AsyncClock, Clock

PAIRS: list[tuple[type, type]] = [
    (Engine, AsyncEngine),
    (Consumer, AsyncConsumer),
    (Worker, AsyncWorker),
    (Resize, AsyncResize),
    (ScheduleHandle, AsyncScheduleHandle),
    (OwnedSchedules, AsyncOwnedSchedules),
]

THREADS_ONLY = {
    # Coalescing pushes is what threads need that push one at a time: pushes of one event loop that are under way
    # together share calls by themselves.
    (Engine, "buffered"),
    # Functions that keep a core busy need processes of their own; coroutines are for what waits, and a loop can't be
    # forked.
    (Worker, "processes"),
}
OPTIONS_OF_THREADS_ONLY = {"worker": {"processes"}}
ASYNCIO_ONLY = {
    # The plugin's: the test's loop may have ended before its fixtures do.
    (AsyncClock, "close_from_outside"),
}
NOT_AWAITED = {
    # Nothing is sent by making a consumer, a worker, a task or a handle of schedules, or by telling one to stop.
    AsyncEngine: {"consumer", "worker", "task", "schedule", "dead", "export", "name", "topology"},
    AsyncConsumer: {"settling", "close"},
    AsyncWorker: {"on", "task", "use", "on_startup", "on_shutdown", "stop", "healthy", "problems", "strays"},
    AsyncResize: set[str](),
    AsyncScheduleHandle: set[str](),
    AsyncOwnedSchedules: set[str](),
}
"""The same plain call on both."""


def public(kind: type) -> dict[str, object]:
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("threads", "loops"), [*PAIRS, (Clock, AsyncClock)])
def test_same_names(threads: type, loops: type) -> None:
    left_out = {name for kind, name in THREADS_ONLY if kind is threads}
    added = {name for kind, name in ASYNCIO_ONLY if kind is loops}
    assert set(public(threads)) - left_out == set(public(loops)) - added


@pytest.mark.parametrize(("threads", "loops"), [*PAIRS, (Clock, AsyncClock)])
def test_same_arguments_and_defaults(threads: type, loops: type) -> None:
    for name, member in public(loops).items():
        if not inspect.isroutine(member) or (loops, name) in ASYNCIO_ONLY:
            continue
        ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (threads, loops))
        left_out = OPTIONS_OF_THREADS_ONLY.get(name, set())
        assert {key: (each.kind, each.default) for key, each in ours.items() if key not in left_out} == {
            key: (each.kind, each.default) for key, each in theirs.items()
        }, name


@pytest.mark.parametrize("kind", NOT_AWAITED)
def test_what_talks_to_a_server_is_awaited(kind: type) -> None:
    for name, member in public(kind).items():
        awaited = inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        assert awaited == (name not in NOT_AWAITED[kind]), name


@pytest.mark.parametrize("kind", [Engine, AsyncEngine])
def test_what_stands_beside_an_engine_takes_either_kind(kind: type[Engine | AsyncEngine]) -> None:
    """None of these opens it."""
    engine = kind("redis://127.0.0.1:1")
    shardq.metrics.collector(engine)
    shardq.http.app(engine)
    shardq.otel.instrument(engine)
    database = sa.create_engine("sqlite://")
    shardq.outbox.OutboxRelay(engine, database).close()
    database.dispose()
    assert repr(engine).endswith("not open yet>")
