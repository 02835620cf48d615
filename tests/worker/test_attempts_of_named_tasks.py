"""The functions of one topic keep their own timeout, attempts and backoff."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from shardq import Backoff, Engine
from tests.support.engines import Engines
from tests.support.states import state_of
from tests.support.waiting import wait_until

AT_ONCE = Backoff(base=0.01, cap=0.02)
LONG_S = 5000.0


class Fixed(Backoff):
    """Always the same."""

    def delay_s(self, attempt: int) -> float:
        return LONG_S


def dead(engine: Engine, id: str) -> str:
    task = engine.get(id)
    return str(task.reason) if task is not None and task.state == "dead" else ""


def test_each_has_its_own_timeout(engines: Engines, running: Engine) -> None:
    def wait(seconds: float) -> None:
        time.sleep(seconds)

    short = running.task(topic="mail", name="short", timeout=0.1, max_attempts=1)(wait)
    long = running.task(topic="mail", name="long", timeout=60)(wait)
    endless = running.task(topic="mail", name="endless")(wait)
    with engines.working(running.worker()):
        ids = [engines.done(task.push(0.8)) for task in (short, long, endless)]
        wait_until(lambda: dead(running, ids[0]) == "timed out after 0.1 s", "one has timed out")
        wait_until(lambda: [state_of(running, id) for id in ids[1:]] == ["gone", "gone"], "the others have not")


def test_each_has_its_own_attempts_and_backoff(engines: Engines, running: Engine) -> None:
    calls: Counter[str] = Counter()

    def fail(what: str) -> None:
        calls[what] += 1
        raise ValueError(what)

    once = running.task(topic="mail", name="once", max_attempts=1)(fail)
    thrice = running.task(topic="mail", name="thrice", max_attempts=3, backoff=AT_ONCE)(fail)
    seldom = running.task(topic="mail", name="seldom", backoff=Fixed())(fail)
    as_the_worker = running.task(topic="mail", name="as the worker")(fail)
    with engines.working(running.worker(max_attempts=2, backoff=AT_ONCE)):
        began = time.time()
        ids = [
            engines.done(once.push("once")),
            engines.done(thrice.push("thrice")),
            engines.done(as_the_worker.push("as the worker")),
            engines.done(once.options(max_attempts=4).push("option")),
        ]
        later = engines.done(seldom.push("seldom"))
        wait_until(lambda: {state_of(running, id) for id in ids} == {"dead"}, "all but one are dead", timeout=30)
        wait_until(lambda: state_of(running, later) == "scheduled" and calls["seldom"] == 1, "that one comes again")
    assert calls == {"once": 1, "thrice": 3, "as the worker": 2, "option": 4, "seldom": 1}
    task = running.get(later)
    assert task is not None
    assert task.due is not None
    assert task.due.timestamp() > began + LONG_S - 1


@pytest.mark.slow
def test_attempts_ride_in_the_task(engines: Engines, running: Engine) -> None:
    """So they hold for leases that run out, too, and for whichever program has the task."""
    send = running.task(topic="mail", name="send", max_attempts=1)(print)
    id, by_hand = engines.done(send.push()), running.push({"task": "send", "args": []}, topic="mail")
    consumer = running.consumer("mail", lease=1.0)  # longer than a claim whose answer was late
    seen: set[str] = set()

    def claimed() -> bool:
        seen.update(delivery.id for delivery in consumer.claim(10))
        return seen >= {id, by_hand}

    wait_until(claimed, "both are claimed")
    wait_until(lambda: dead(running, id) == "lost with its worker", "its only attempt is over")
    assert state_of(running, by_hand) != "dead"
    tasks = [running.get(each) for each in (id, by_hand)]
    assert [task and task.max_attempts for task in tasks] == [1, None]


def test_a_recurring_one_keeps_its_attempts(engines: Engines, running: Engine) -> None:
    seen: list[Any] = []
    running.task(topic="mail", name="often", every=1, max_attempts=1)(lambda: None)
    with engines.working(running.worker()):
        wait_until(lambda: running.schedules(), "it is declared")

        def pushed() -> bool:
            seen[:] = [task.max_attempts for task in running.tasks(topic="mail", state="scheduled")]
            return len(seen) > 0

        wait_until(pushed, "occurrences are pushed")
    assert set(seen) == {1}


def test_a_new_number_holds_for_new_tasks(engines: Engines, url: str, name: str) -> None:
    """And a new timeout, or backoff, for those that wait."""
    calls: list[str] = []

    def fail(what: str) -> None:
        calls.append(what)
        raise ValueError(what)

    old, new = (engines.make(url, name=name, shards=2) for _ in range(2))
    before = old.task(topic="mail", name="send", max_attempts=3, backoff=Fixed())(fail)
    after = new.task(topic="mail", name="send", max_attempts=1, backoff=AT_ONCE)(fail)
    ids = [engines.done(before.push("before")), engines.done(after.push("after"))]
    new.start()
    with engines.working(new.worker()):
        wait_until(lambda: {state_of(new, id) for id in ids} == {"dead"}, "both are dead")
    assert Counter(calls) == {"before": 3, "after": 1}
