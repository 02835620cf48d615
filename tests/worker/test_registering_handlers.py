"""Registering handlers: which are accepted, and which are refused at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from shardq import Backoff, BadInput, Delivery, Engine
from shardq.errors import InvalidName, InvalidOption, InvalidTopic, ShardqError
from shardq.worker.base import plan_of
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
        ({"timeout": "5"}, "timeout='5' is not possible"),
        ({"timeout": True}, "timeout=True is not possible"),
        ({"max_attempts": 0}, "max_attempts can't be 0"),
        ({"max_attempts": "3"}, "max_attempts can't be '3'"),
        ({"backoff": 5}, "backoff=5 is not possible; give a Backoff, such as"),
        ({"backoff": 0}, "backoff=0 is not possible"),
        ({"backoff": Backoff}, "backoff=<class 'shardq.core.consumer.policy.Backoff'> is not possible"),
    ],
)
def test_impossible_options(engine: Engine, options: dict[str, Any], text: str) -> None:
    """Refused where they are given, before there is a function."""
    with pytest.raises(InvalidOption, match=text):
        engine.worker().on("a", **options)
    with pytest.raises(InvalidOption, match=text):
        engine.worker().task(topic="a", **options)
    with pytest.raises(InvalidOption, match=text):
        engine.task(topic="a", **options)


@pytest.mark.parametrize("type", [5, "Email", {}, print, ["x"]], ids=repr)
def test_a_type_that_is_none(engine: Engine, type: Any) -> None:
    with pytest.raises(InvalidOption, match=r"type=.* is not possible: .*; give a type that msgspec decodes"):
        engine.worker().on("a", type=type)


def test_a_decorator_without_its_topic(engine: Engine) -> None:
    worker: Any = engine.worker()
    with pytest.raises(
        InvalidOption, match=r'@worker.on needs a topic: write @worker.on\("…"\) above <function nothing'
    ):
        worker.on(nothing)
    with pytest.raises(InvalidTopic, match="a topic can't be 5"):
        worker.on(5)
    with pytest.raises(InvalidOption, match="a task can't be 'mail'; give a function"):
        worker.task("mail")
    with pytest.raises(InvalidTopic):
        worker.task(topic="a b")


def test_a_function_that_runs_nothing_when_it_is_called(engine: Engine) -> None:
    def some(delivery: Delivery) -> Iterator[int]:
        yield 1

    async def some_async(delivery: Delivery) -> AsyncIterator[int]:
        yield 1

    for function in (some, some_async):
        with pytest.raises(InvalidOption, match="with a yield in it a call runs nothing; take that out"):
            engine.worker().on("a")(function)
        with pytest.raises(InvalidOption, match="with a yield in it a call runs nothing; take that out"):
            engine.worker().task(function)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency=0 is not possible; give an int from 1 to 100,000"),
        ({"concurrency": True}, "concurrency=True is not possible"),
        ({"grace": -1}, "grace can't be -1; give seconds as a number, from 0 to"),
        ({"grace": float("nan")}, "grace can't be nan"),
        ({"grace": "5"}, "grace can't be '5'"),
        ({"lease": 0}, "lease can't be 0; give more than 0"),
        ({"lease": "30"}, "lease can't be '30'"),
        ({"max_attempts": 0}, "max_attempts can't be 0"),
        ({"max_attempts": 2.5}, "max_attempts can't be 2.5"),
        ({"backoff": 5}, "backoff=5 is not possible; give a Backoff, such as"),
        ({"backoff": 0}, "backoff=0 is not possible"),
        ({"topics": 5}, r"topics=5 is not possible; give a name, \[name, …\] in their order of priority, or {name"),
        ({"topics": []}, "topics= names none; give one at least"),
    ],
)
def test_an_impossible_worker(engine: Engine, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        engine.worker(**options)


def test_an_impossible_name_of_a_worker(engine: Engine) -> None:
    with pytest.raises(InvalidName, match="the name of a worker can't be 'a b'"):
        engine.worker(name="a b")
    for topics in (["a b"], {"a b": 1}):
        with pytest.raises(InvalidTopic):
            engine.worker(topics)


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


def test_a_middleware_has_a_method_that_is_called(engine: Engine) -> None:
    with pytest.raises(InvalidOption, match="has none of the methods before, after, error; give it at least one"):
        engine.worker().use(object())


def test_a_handler_takes_the_delivery_alone(engine: Engine) -> None:
    worker = engine.worker()

    def none() -> None: ...

    def two(to: str, text: str) -> None: ...

    handlers: tuple[Any, ...] = (none, two)
    for handler in handlers:
        with pytest.raises(InvalidOption, match=r"called with the delivery alone, as def handle\(delivery\)"):
            worker.on("a")(handler)

    @worker.on("a")
    def more(delivery: Delivery, more: int = 0, *others: int) -> None: ...


def test_a_worker_that_runs_takes_no_handler(engine: Engine) -> None:
    worker = engine.worker()
    worker.on("a")(nothing)
    with worker._run_once():
        for register in (worker.on("b"), worker.task(name="b", topic="b")):
            with pytest.raises(ShardqError, match="runs already, and would not serve what is registered now"):
                register(nothing)
    worker.on("b")(nothing)


def test_a_lambda_or_a_closure_is_no_named_task(engine: Engine) -> None:
    text = "hello"

    def greet(to: str) -> None:
        print(text, to)

    with pytest.raises(InvalidOption, match=r"has no name of its own.*; give name="):
        engine.task(lambda: None)
    with pytest.raises(InvalidOption, match=r"greet is a closure: .*define it in the module, or give name="):
        engine.task(greet)
    assert engine.task(name="greet")(greet).name == "greet"


CELL = """
@engine.task(name="send", topic="mail")
def send(to): ...

@worker.on("sms")
def text(delivery): return number
"""


def test_a_cell_that_is_run_again_replaces_its_functions(engine: Engine) -> None:
    """As notebooks and consoles run them."""
    worker = engine.worker()
    cell: dict[str, Any] = {"__name__": "__main__", "engine": engine, "worker": worker, "number": 1}
    exec(CELL, cell)
    exec(CELL.replace("(to)", "(to, text)").replace("number", "number + 1"), cell)
    plan = plan_of(worker)
    assert [type(each).__name__ for each in plan.functions] == ["TopicFunction", "TaskFunction"]
    assert plan.handlers["sms"].run(None) == 2
    assert cell["send"].call("ann", "hello").payload["args"] == ["ann", "hello"]
    for place in ({**cell}, {**cell, "__file__": "shop.py"}):
        with pytest.raises(BadInput, match="registered already"):
            exec(CELL, place)


def test_words_of_other_queues(engine: Engine) -> None:
    @engine.task(name="send")
    def send(to: str) -> None: ...

    for word, ours in {"countdown": "delay=seconds", "eta": "at=instant", "queue": "topic="}.items():
        with pytest.raises(TypeError, match=f"no argument {word}=; write {ours}"):
            engine.push(1, **{word: 5})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"no argument {word}=; write {ours}"):
            send.options(**{word: 5})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_retries=; write max_attempts=, which counts the first"):
        engine.task(max_retries=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="max_retries=; write max_attempts=, which counts the first"):
        engine.worker().on("a", max_retries=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"push has no argument colour=$"):
        engine.push(1, colour=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"stand apart: send.options\(delay=seconds\).push\(…\)"):
        send.push("ann", countdown=5)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match=r"a task has no delay\(\); write push\(…\), or options\(delay="):
        send.delay("ann")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"a task has no apply_async\(\); write options\(delay="):
        send.apply_async  # type: ignore[attr-defined]  # noqa: B018
