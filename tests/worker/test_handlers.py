"""Registering handlers: what is taken, and what is refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from shardq import BadInput, Delivery, Engine, InvalidOption, InvalidTopic
from tests.support.engines import Engines


@pytest.fixture
def engine(engines: Engines) -> Engine:
    """Never connected."""
    return engines.make("redis://127.0.0.1:1", name="handlers")


def nothing(delivery: Delivery) -> None: ...


def test_the_order_of_registration_is_the_order_of_priority(engine: Engine) -> None:
    worker = engine.worker()
    for topic in ("high", "", "low"):
        assert worker.on(topic)(nothing) is nothing
    assert repr(worker).endswith("of ['high', '', 'low'], 16 at once>")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": 0}, "timeout=0 is not possible; give seconds, more than 0"),
        ({"timeout": float("nan")}, "timeout=nan is not possible"),
        ({"max_attempts": 0}, "max_attempts can't be 0"),
    ],
)
def test_impossible_options(engine: Engine, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        engine.worker().on("a", **options)(nothing)
    with pytest.raises(InvalidOption, match=text):
        engine.worker().task(topic="a", **options)(nothing)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency=0 is not possible; give an int from 1 to 100,000"),
        ({"concurrency": True}, "concurrency=True is not possible"),
        ({"grace": -1}, "grace=-1 is not possible; give seconds, 0 or more"),
        ({"grace": float("nan")}, "grace=nan is not possible"),
    ],
)
def test_an_impossible_worker(engine: Engine, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        engine.worker(**options)


@pytest.mark.parametrize("processes", [0, 1.5, True, 1001])
def test_impossible_processes(processes: Any) -> None:
    with pytest.raises(InvalidOption, match="give an int from 1 to 1,000"):
        Engine("redis://127.0.0.1:1").worker(processes=processes)


def test_one_handler_a_topic(engine: Engine) -> None:
    worker = engine.worker()
    worker.on("a")(nothing)
    with pytest.raises(BadInput, match="the topic 'a' has a handler already"):
        worker.on("a")(nothing)
    with pytest.raises(BadInput, match="the topic 'a' has a handler already; give the function a topic of its own"):
        worker.task(topic="a")(nothing)
    with pytest.raises(InvalidTopic):
        worker.on("a b")(nothing)
    with pytest.raises(InvalidOption, match="a handler can't be 5; give a function or a coroutine function"):
        worker.on("b")(5)  # type: ignore[type-var]  # that is the point


def test_one_function_a_name(engine: Engine) -> None:
    worker = engine.worker()
    worker.task(name="send")(nothing)
    worker.task(name="other")(nothing)
    with pytest.raises(BadInput, match="a function named 'send' is registered already; give name= another"):
        worker.task(name="send")(nothing)


def test_a_named_task_is_still_the_function(engine: Engine) -> None:
    @engine.worker().task
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    assert add(1) == 2
    assert add(1, b=5) == 6
    assert (add.topic, add.__doc__) == ("", "Adds.")
    assert add.name.endswith("test_handlers.test_a_named_task_is_still_the_function.<locals>.add")


def test_a_middleware_has_a_method_that_is_called(engine: Engine) -> None:
    with pytest.raises(InvalidOption, match="has none of the methods before, after, error; give it at least one"):
        engine.worker().use(object())
