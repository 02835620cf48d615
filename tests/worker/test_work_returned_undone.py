"""A handler that returns work instead of doing it has failed: nothing awaits or iterates over what it returns."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from shardq import Delivery, Engine
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.worker.flavours import Flavour, handler

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)

ran: list[str] = []
"""What must not be here: work that nobody does."""


async def work() -> None:
    ran.append("coroutine")


def some() -> Iterator[int]:
    ran.append("generator")
    yield 1


async def some_async() -> AsyncIterator[int]:
    ran.append("async generator")
    yield 1


class Later:
    def __await__(self) -> Generator[None, None, None]:
        ran.append("awaitable")
        yield


MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "coroutine": (
        work,
        "returned a coroutine of work: nobody awaits it; do that in the handler, as a coroutine function",
    ),
    "awaitable": (Later, "returned a Later: nobody awaits it; do that"),
    "step": (lambda: anext(some_async()), "returned an async_generator_asend: nobody awaits it; do that"),
    "generator": (some, "returned a generator of some: nobody iterates over it; do that in the handler"),
    "async generator": (some_async, "returned an async_generator of some_async: nobody iterates over it"),
    "Future": (Future, "returned a Future: nobody waits for it; ask for its result() in the handler"),
}


def dead(engine: Engine, id: str) -> str | None:
    """Why it is dead; None while it is not."""
    task = engine.get(id)
    return task.reason if task is not None and task.state == "dead" else None


def died(engine: Engine, id: str) -> str:
    return str(wait_until(lambda: dead(engine, id), "it has failed"))


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """The warnings of this test, also those of objects that nobody has any more."""
    ran.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said: list[str] = []
        yield said
        gc.collect()
        said += [str(each.message) for each in caught]
    assert not [each for each in said if "never awaited" in each]


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize("kind", MADE)
def test_what_is_given_back_undone(engines: Engines, running: Engine, flavour: Flavour, kind: str) -> None:
    make, text = MADE[kind]
    worker = running.worker(max_attempts=1)
    worker.on("")(handler(flavour, lambda delivery: make()))
    with engines.working(worker):
        reason = died(running, running.push("x"))
    assert text in reason
    name = "<lambda>" if flavour == "function" else "flavours.handler.<locals>.coroutine"
    assert f"{name} returned" in reason
    assert ran == []


@pytest.mark.usefixtures("warned")
def test_a_named_function_is_called_by_its_name(engines: Engines, running: Engine) -> None:
    worker = running.worker(max_attempts=1)

    def send(to: str) -> Any:
        return work()

    task = worker.task(topic="mail", name="post.send")(send)
    with engines.working(worker):
        reason = died(running, engines.done(task.push("ann")))
    assert "post.send returned a coroutine of work" in reason


@pytest.mark.usefixtures("warned")
def test_decorated_and_bound_coroutine_functions(engines: Engines, running: Engine) -> None:
    """What hides the coroutine function fails, what shows it works."""
    done: list[tuple[str, str]] = []

    async def send(word: str, delivery: Delivery) -> None:
        await asyncio.sleep(0)
        done.append((word, delivery.topic))

    def logged(function: Callable[[Delivery], Any]) -> Callable[[Delivery], Any]:
        @functools.wraps(function)
        def wrapper(delivery: Delivery) -> Any:
            return function(delivery)

        return wrapper

    worker = running.worker(max_attempts=1)
    worker.on("bound")(functools.partial(send, "bound"))
    worker.on("hidden")(logged(functools.partial(send, "hidden")))
    with engines.working(worker):
        shown, hidden = running.push("x", topic="bound"), running.push("x", topic="hidden")
        assert "returned a coroutine of send" in died(running, hidden)
        wait_until(lambda: state_of(running, shown) == "gone", "the other is handled")
    assert done == [("bound", "bound")]


class Waiter:
    def __init__(self) -> None:
        self.threads: list[str] = []

    async def __call__(self, delivery: Any) -> None:
        await asyncio.sleep(0)
        self.threads.append(threading.current_thread().name)


def test_an_object_whose_call_is_a_coroutine_function(engines: Engines, running: Engine) -> None:
    """It is one, as it stands, in a partial, and by name."""
    waiter = Waiter()
    worker = running.worker(max_attempts=1)
    worker.on("a")(waiter)
    worker.on("b")(functools.partial(waiter))
    named: Any = worker.task(topic="c", name="waiter")(waiter)
    with engines.working(worker):
        ids = [running.push("x", topic="a"), running.push("x", topic="b"), engines.done(named.push("x"))]
        wait_until(lambda: all(state_of(running, id) == "gone" for id in ids), "they are handled")
    assert waiter.threads == ["loop" if engines.kind == "asyncio" else "shardq-coroutines"] * 3


class Yielding:
    def __call__(self, delivery: Delivery) -> Iterator[int]:
        yield 1


class YieldingAsync:
    async def __call__(self, delivery: Delivery) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize("kind", [Yielding, YieldingAsync])
def test_an_object_whose_call_yields_is_refused(running: Engine, kind: Callable[[], Any]) -> None:
    for function in (kind(), functools.partial(kind())):
        with pytest.raises(InvalidOption, match="with a yield in it a call runs nothing"):
            running.worker().on("a")(function)
        with pytest.raises(InvalidOption, match="with a yield in it a call runs nothing"):
            running.worker().task(name="a")(function)


def test_what_is_no_work_may_be_returned(engines: Engines, running: Engine, flavour: Flavour) -> None:
    """Also an object that can't even be asked what it is."""

    class Masked:
        @property  # type: ignore[misc]  # that is the point
        def __class__(self) -> Any:
            raise ValueError("no class")

        def __repr__(self) -> str:
            raise ValueError("no text")

    given = [1, "text", [1], {"a": 1}, Masked(), Waiter, work, some, iter([1])]
    worker = running.worker(max_attempts=1)
    worker.on("")(handler(flavour, lambda delivery: given[delivery.payload]))
    with engines.working(worker):
        ids = [running.push(n) for n in range(len(given))]
        wait_until(lambda: [state_of(running, id) for id in ids] == ["gone"] * len(ids), "all are acknowledged")


class HiddenHook:
    """Its hooks are plain functions by their looks, and give coroutines and generators."""

    def __init__(self) -> None:
        self.before = lambda delivery: work()
        self.after = lambda delivery: some()


@pytest.mark.usefixtures("warned")
def test_a_hook_that_gives_back_work(
    engines: Engines, running: Engine, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    worker = running.worker()
    worker.use(HiddenHook())
    worker.on("")(handler(flavour, lambda delivery: None))
    with engines.working(worker):
        id = running.push("x")
        wait_until(lambda: state_of(running, id) == "gone", "it is handled")
    assert "a before hook failed" in caplog.text
    assert "returned a coroutine of work: nobody awaits it" in caplog.text
    assert "returned a generator of some: nobody iterates over it" in caplog.text
    assert ran == []


def test_a_hook_whose_call_is_none_to_await(running: Engine) -> None:
    class Hooks:
        before = Waiter()

    with pytest.raises(InvalidOption, match=r"before of .* is a coroutine function"):
        running.worker().use(Hooks())

    class Yields:
        before = Yielding()

    with pytest.raises(InvalidOption, match="with a yield in it a call runs nothing"):
        running.worker().use(Yields())
