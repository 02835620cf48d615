"""``@engine.task(key=…)``: the key of each call, told by its arguments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import shardq
from shardq import Engine
from shardq.errors import InvalidKey, InvalidOption
from tests.support.engines import Engines
from tests.support.waiting import wait_until


def test_the_calls_of_one_key_run_one_at_a_time(engines: Engines, running: Engine) -> None:
    calls: list[int] = []
    together, most, lock = [0], [0], threading.Lock()

    @running.task(topic="ship", name="ship", key=lambda to, order: to)
    def ship(order: int, to: str = "bob") -> None:
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        time.sleep(0.01)
        with lock:
            calls.append(order)
            together[0] -= 1

    ids = [engines.done(ship.push(n)) for n in range(10)]
    assert all(id.startswith("ship/bob/") for id in ids)
    assert engines.done(ship.push(99, to="ann")).startswith("ship/ann/")
    with engines.working(running.worker(concurrency=8)):
        wait_until(lambda: len(calls) == 11, "all are called")
    assert [each for each in calls if each != 99] == list(range(10))
    assert most[0] <= 2


def test_whatever_pushes_a_call_gives_it_its_key(engines: Engines, engine: Engine) -> None:
    ship = engine.task(topic="ship", name="ship", key=lambda to: to)(_ship)
    assert ship.call(1, to="ann").key == "ann"
    assert ship.options(delay=5, id="1").call(1, "ann").key == "ann"
    assert ship.options(key="own").call(1, "ann").key == "own"
    assert engines.done(ship.options(key="own", id="1", delay=60).push(1, "ann")) == "ship/own/1"
    assert engines.done(ship.options(topic="other", id="1", delay=60).push(1, "ann")) == "other/ann/1"
    assert engine.push_many([ship.options(id="7", delay=60).call(1, "ann")]) == ["ship/ann/7"]
    assert engine.worker().task(topic="t", name="dig", key=lambda order: f"n{order}")(_ship).call(1, "a").key == "n1"
    assert engines.done(ship.cancel("7", key="ann")) is shardq.Outcome.CANCELLED
    assert engines.done(ship.cancel("ship/own/1")) is shardq.Outcome.CANCELLED
    with pytest.raises(InvalidOption, match="ship has key=, so the key is a part of its ids; give key= with id='7'"):
        ship.cancel("7")


def test_a_recurring_call_has_the_key_of_its_defaults(engines: Engines, running: Engine) -> None:
    seen: list[str | None] = []

    @running.task(topic="t", name="sweep", every=0.2, key=lambda region: region)
    def sweep(region: str = "eu") -> None: ...

    worker = running.worker()

    class Hook:
        def before(self, delivery: shardq.Delivery) -> None:
            seen.append(delivery.key)

    worker.use(Hook())
    with engines.working(worker):
        wait_until(lambda: len(seen) >= 2, "it recurs")
    assert set(seen) == {"eu"}


def _ship(order: int, to: str = "bob", *words: str, **more: str) -> None: ...


def by_place(to: str, /, *, order: int) -> str:
    return f"{to}{order}"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (lambda: "one", "one"),
        (lambda words: "-".join(words), "a-b"),
        (lambda more, order: more["x"] + str(order), "y1"),
        (by_place, "ann1"),
    ],
)
def test_it_names_what_it_needs(engine: Engine, key: Callable[..., str], expected: str) -> None:
    assert engine.task(name="ship", key=key)(_ship).call(1, "ann", "a", "b", x="y").key == expected


async def coroutine(to: str) -> str:
    return to


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            lambda customer: customer,
            r"has the parameter customer, which ship does not have; .*\(order, to, words, more\)",
        ),
        (lambda *args: "x", r"has the parameter \*args"),
        (lambda **words: "x", r"has the parameter \*\*words"),
        (lambda to, salt="x": to, "has the parameter salt"),
        ("customer-7", "give a function of its arguments"),
        (coroutine, "can't be a coroutine function"),
        (dict, "does not tell its parameters; give a lambda"),
    ],
)
def test_it_is_checked_where_the_task_is_defined(engine: Engine, key: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        engine.task(name="ship", key=key)(_ship)


def test_a_recurring_one_whose_defaults_make_no_key(engine: Engine) -> None:
    def sweep(region: str = "") -> None: ...

    with pytest.raises(InvalidKey, match="key= of sweep returned ''"):
        engine.task(name="sweep", every=60, key=lambda region: region)(sweep)


@pytest.mark.parametrize("key", [None, 5, "", "a/b", "x" * 201])
def test_what_is_no_key_is_refused_by_the_push(engines: Engines, engine: Engine, key: Any) -> None:
    ship = engine.task(name="ship", key=lambda: key)(_ship)
    with pytest.raises(InvalidKey, match="key= of ship returned"):
        ship.push(1)
    assert engines.done(ship.options(key="k", id="1", delay=60).push(1)) == "/k/1"


def test_wrong_arguments_are_told_before_the_key(engine: Engine) -> None:
    ship = engine.task(name="ship", key=lambda to: to)(_ship)
    with pytest.raises(InvalidOption, match="can't be pushed with these arguments: missing a required argument"):
        ship.push()  # type: ignore[call-arg]


def test_an_error_of_the_function_is_the_pushers(engine: Engine) -> None:
    ship = engine.task(name="ship", key=lambda more: more["customer"])(_ship)
    with pytest.raises(KeyError, match="customer"):
        ship.push(1)
