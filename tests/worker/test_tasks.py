"""Tasks that are declared on an engine: pushed without a worker, and served by every worker of the engine."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardq import BadInput, Delivery, Engine
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.states import counted, state_of
from tests.support.waiting import wait_until


@pytest.fixture
def unconnected(engines: Engines) -> Engine:
    """Nothing answers at its address."""
    return engines.make("redis://127.0.0.1:1", name="tasks", timeout=0.1)


def nothing(delivery: Delivery) -> None: ...


def named(name: str, calls: list[str]) -> Callable[[], None]:
    return lambda: calls.append(name)


# ---- the function


def test_a_task_is_still_the_function(unconnected: Engine) -> None:
    @unconnected.task
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    @unconnected.worker().task(topic="slow")
    async def dig(*, self: int) -> int:
        await asyncio.sleep(0)
        return self

    assert (add(1), add(1, b=5), asyncio.run(dig(self=5))) == (2, 6, 5)
    assert (add.topic, dig.topic) == ("", "slow")
    assert (add.__doc__, list(inspect.signature(add).parameters)) == ("Adds.", ["a", "b"])
    assert add.name.endswith("test_tasks.test_a_task_is_still_the_function.<locals>.add")
    assert repr(dig).startswith("<NamedTask ")


def test_a_function_of_two_topics(engines: Engines, running: Engine) -> None:
    """So a call can be pushed to the other topic, too."""
    calls: list[str] = []

    @running.task(topic="high", name="send")
    @running.task(topic="low", name="send")
    async def send(to: str) -> None:
        calls.append(to)

    with engines.working(running.worker()):
        engines.done(send.push("a"))
        engines.done(send.options(topic="low").push("b"))
        wait_until(lambda: sorted(calls) == ["a", "b"], "both are called")


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "missing a required argument: 'to'"),
    (("a",), {}, "missing a required argument: 'text'"),
    (("a", "b", "c"), {}, "too many positional arguments"),
    (("a", "b"), {"later": True}, "got an unexpected keyword argument 'later'"),
    (("a", "b"), {"to": "c"}, "multiple values for argument 'to'"),
    ((("a", "b"),), {}, "missing a required argument: 'text'"),
]


@pytest.mark.parametrize(("args", "kwargs", "text"), WRONG, ids=lambda value: str(value)[:30])
def test_wrong_arguments_are_refused_before_anything_is_sent(
    engines: Engines, unconnected: Engine, args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    def send(to: str, text: str, *, urgent: bool = False) -> None: ...

    async def send_later(to: str, text: str, *, urgent: bool = False) -> None: ...

    for function in (send, send_later):
        task: Any = unconnected.task(name=f"shop.{function.__name__}")(function)
        for pushes in (task, task.options(delay=5)):
            with pytest.raises(InvalidOption) as caught:
                engines.done(pushes.push(*args, **kwargs))
            message = str(caught.value)
            assert message.startswith(f"shop.{function.__name__} can't be pushed with these arguments: {text}")
            assert message.endswith("; it takes (to, text, *, urgent=False)")


def test_a_decorator_that_adds_arguments_is_asked_for_those_it_takes(engines: Engines, running: Engine) -> None:
    """And not the function in it, whose argument nobody gives. Nothing is asked where nothing is known."""
    calls: list[Any] = []

    def with_database(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(to: str) -> None:
            function("database", to)

        return wrapper

    @running.task(name="send")
    @with_database
    def send(database: str, to: str) -> None:
        calls.append((database, to))

    update: Any = running.task(name="update")(dict)
    with engines.working(running.worker()):
        engines.done(send.push("ann"))
        with pytest.raises(InvalidOption, match=r"it takes \(to\)"):
            engines.done(send.push("database", "ann"))
        id = engines.done(update.push(a=1))
        wait_until(lambda: calls == [("database", "ann")], "it is called")
        wait_until(lambda: state_of(running, id) == "gone", "the other, too")


# ---- who serves it


def test_a_producer_needs_no_worker(engines: Engines, url: str, name: str) -> None:
    """One engine pushes, another one, of another program, has the same function."""
    calls: list[str] = []
    producer, server = (engines.make(url, name=name, shards=2) for _ in range(2))
    tasks = [engine.task(topic="mail", name="send")(named("sent", calls)) for engine in (producer, server)]
    engines.done(tasks[0].push())
    server.start()
    with engines.working(server.worker()):
        wait_until(lambda: calls == ["sent"], "it is called")


def test_a_worker_serves_the_tasks_declared_before_it_and_after_it(engines: Engines, running: Engine) -> None:
    calls: list[str] = []
    before = running.task(topic="before", name="a")(named("before", calls))
    worker = running.worker()
    worker.on("own")(lambda delivery: calls.append("own"))
    own = worker.task(topic="before", name="own")(named("own of the same topic", calls))
    after = running.task(topic="after", name="b")(named("after", calls))
    assert repr(worker).endswith(" of ['own', 'before', 'after'], 16 at once>")
    with engines.working(worker):
        for task in (before, own, after):
            engines.done(task.push())
        running.push("x", topic="own")
        wait_until(lambda: len(calls) == 4, "all are handled")
    assert set(calls) == {"before", "own", "own of the same topic", "after"}


def test_a_task_of_a_worker_is_its_own(engines: Engines, running: Engine) -> None:
    calls: list[str] = []
    one, other = running.worker(), running.worker()
    one.task(name="one")(named("one", calls))
    task = other.task(name="other")(named("other", calls))
    with engines.working(one):
        id = engines.done(task.push())
        wait_until(lambda: state_of(running, id) == "scheduled", "it is known to the other only")
    assert calls == []


@pytest.mark.parametrize("topics", [["mail", "own"], {"mail": 3, "own": 1}], ids=str)
def test_a_worker_that_is_told_which_topics(engines: Engines, running: Engine, topics: Any) -> None:
    calls: list[str] = []
    other = running.task(topic="other", name="other")(named("other", calls))
    worker = running.worker(topics)
    worker.on("own")(lambda delivery: calls.append("own"))
    mail = running.task(topic="mail", name="mail")(named("mail", calls))
    assert repr(worker).endswith(" of ['mail', 'own'], 16 at once>")
    with engines.working(worker):
        left = engines.done(other.push())
        running.push("x", topic="own")
        engines.done(mail.push())
        wait_until(lambda: len(calls) == 2, "those two are handled")
    assert sorted(calls) == ["mail", "own"]
    wait_until(lambda: state_of(running, left) == "ready", "the other one is nobody's")


@pytest.mark.parametrize("topics", [["own"], ["mail"], ["own", "mail", "unknown"], {"mail": 1, "unknown": 1}], ids=str)
def test_topics_that_leave_out_a_handler_or_name_one_without(
    engines: Engines, unconnected: Engine, topics: Any
) -> None:
    unconnected.task(topic="mail")(nothing)
    worker = unconnected.worker(topics)
    worker.on("own")(nothing)
    worker.on("another")(nothing)
    text = (
        r"it must name every topic that this worker has a handler for, \['own', 'another'\], and no others but .*'mail'"
    )
    with pytest.raises(InvalidOption, match=text):
        engines.ran(worker)


def test_a_worker_without_anything_to_do(engines: Engines, unconnected: Engine) -> None:
    for topics in (None, ["mail"]):
        with pytest.raises(InvalidOption, match=r"register one with @worker.on\(topic\) or @engine.task"):
            engines.ran(unconnected.worker(topics))


def test_tasks_of_an_engine_in_several_processes(url: str, name: str, tmp_path: Path) -> None:
    with Engine(url, name=name, shards=2) as engine:
        engine.start()
        worker = engine.worker(processes=2, concurrency=1)

        @engine.task(topic="mail", name="note")
        def note(word: str) -> None:
            (tmp_path / f"{word} {os.getpid()}").touch()
            if word == "meet":
                # Both are needed at once.
                wait_until(lambda: len(list(tmp_path.glob("meet *"))) == 2, "another process has the other")

        with Engines("sync").working(worker):
            for word in ("meet", "meet", "last"):
                note.push(word)
            wait_until(lambda: len(list(tmp_path.iterdir())) == 3, "all are called")
            wait_until(lambda: counted(engine).ready + counted(engine).leased == 0, "all are acknowledged")
    assert {path.name.split()[1] for path in tmp_path.iterdir()}.isdisjoint({str(os.getpid())})


# ---- what can't be


def test_two_tasks_of_one_name(unconnected: Engine) -> None:
    text = "a function named 'send' is registered already; give name= another"
    unconnected.task(topic="mail", name="send")(nothing)
    with pytest.raises(BadInput, match=text):
        unconnected.task(topic="mail", name="send")(nothing)
    with pytest.raises(BadInput, match=text):
        unconnected.worker().task(topic="mail", name="send")(nothing)
    unconnected.task(topic="other", name="send")(nothing)


def test_a_topic_with_a_handler_and_a_task(unconnected: Engine) -> None:
    unconnected.task(topic="mail", name="send")(nothing)
    text = "the topic 'mail' has tasks, which are handled by name: send; give the handler a topic of its own"
    with pytest.raises(BadInput, match=text):
        unconnected.worker().on("mail")(nothing)
    worker = unconnected.worker()
    worker.task(topic="own", name="dig")(nothing)
    with pytest.raises(BadInput, match="the topic 'own' has tasks, which are handled by name: dig; "):
        worker.on("own")(nothing)


def test_what_a_task_meets_that_was_declared_later(engines: Engines, unconnected: Engine) -> None:
    """It is seen when the worker starts, before anything is claimed."""
    one, other = unconnected.worker(), unconnected.worker()
    one.on("mail")(nothing)
    other.task(topic="mail", name="send")(nothing)
    unconnected.task(topic="mail", name="send")(nothing)
    for worker, text in (
        (one, "the topic 'mail' has a handler already"),
        (other, "a function named 'send' is registered already"),
    ):
        assert repr(worker).endswith(" of ['mail'], 16 at once>")
        with pytest.raises(BadInput, match=text):
            engines.ran(worker)
