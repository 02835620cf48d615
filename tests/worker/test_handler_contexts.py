"""Each call of a handler has a context of its own, from the first hook to the last."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
from typing import Any, Literal

import pytest

from shardq import Delivery, Engine
from tests.support.engines import Engines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)

who: contextvars.ContextVar[Any] = contextvars.ContextVar("who", default="nobody")


Flavour = Literal["function", "coroutine", "coroutine that waits"]


@pytest.fixture(params=["function", "coroutine", "coroutine that waits"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    chosen: Flavour = request.param
    return chosen


def test_what_a_handler_sets_is_not_for_the_next(engines: Engines, running: Engine, flavour: Flavour) -> None:
    seen: list[tuple[str, int]] = []

    def look(delivery: Delivery) -> None:
        seen.append((who.get(), decimal.getcontext().prec))
        who.set(delivery.payload)
        decimal.getcontext().prec = 5

    async def look_later(delivery: Delivery) -> None:
        look(delivery)
        if flavour == "coroutine that waits":
            await asyncio.sleep(0)

    worker = running.worker(concurrency=1)
    worker.on("")(look if flavour == "function" else look_later)
    with engines.working(worker):
        for n in range(5):
            running.push(n)
            wait_until(lambda: len(seen) == n + 1, "it is handled")  # noqa: B023  called at once
    assert seen == [("nobody", decimal.DefaultContext.prec)] * 5


class Hooks:
    """Names a task before it is handled, and looks who it was afterwards."""

    def __init__(self) -> None:
        self.after_whom: list[Any] = []

    def before(self, delivery: Delivery) -> None:
        who.set(f"task {delivery.payload}")

    def after(self, delivery: Delivery) -> None:
        self.after_whom.append(who.get())


def test_hooks_and_their_handler_share_one(engines: Engines, running: Engine, flavour: Flavour) -> None:
    seen: list[str] = []

    def look(delivery: Delivery) -> None:
        seen.append(who.get())
        who.set(f"end of {delivery.payload}")

    async def look_later(delivery: Delivery) -> None:
        if flavour == "coroutine that waits":
            await asyncio.sleep(0)
        look(delivery)

    hooks = Hooks()
    worker = running.worker(concurrency=1)
    worker.use(hooks)
    worker.on("")(look if flavour == "function" else look_later)
    with engines.working(worker):
        running.push(1)
        running.push(2)
        wait_until(lambda: len(hooks.after_whom) == 2, "both are handled")
    assert sorted(seen) == ["task 1", "task 2"]
    assert sorted(hooks.after_whom) == ["end of 1", "end of 2"]
