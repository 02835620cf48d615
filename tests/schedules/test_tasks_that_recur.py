"""``@engine.task(every=…)``: the workers that serve a task declare its schedule."""

from __future__ import annotations

import datetime as dt

import pytest

from shardq import Engine, Every
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.waiting import wait_until


@pytest.mark.parametrize("by", ["engine", "worker"])
def test_a_worker_declares_and_runs_it(engines: Engines, running: Engine, by: str) -> None:
    calls: list[str] = []
    worker = running.worker()
    tasks = running if by == "engine" else worker

    @tasks.task(topic="t", name="sweep", every=0.2)
    def sweep(what: str = "all") -> None:
        calls.append(what)

    @tasks.task(topic="t", name="often", every=Every(interval=dt.timedelta(seconds=0.3), catch_up="none"))
    async def often() -> None:
        calls.append("often")

    @tasks.task(topic="t", name="plain")
    def plain() -> None: ...

    assert running.schedules() == []
    with engines.working(worker):
        wait_until(lambda: calls.count("all") >= 3 and calls.count("often") >= 3, "both recur")
        names = {each.name: (each.interval, each.catch_up, each.topic) for each in running.schedules()}
        assert names == {"sweep": (0.2, "one", "t"), "often": (0.3, "none", "t")}
        for each in names:
            running.schedule(each).remove()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_start_declares_it(engine: Engine) -> None:
    @engine.task(name="sweep", every="*/5 * * * *")
    def sweep() -> None: ...

    engine.start()
    assert [(each.name, each.cron) for each in engine.schedules()] == [("sweep", "*/5 * * * *")]


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_any_function_that_can_be_a_task_can_recur(engines: Engines, running: Engine) -> None:
    calls: list[str] = []
    worker = running.worker()

    class Sweeper:
        def sweep(self, what: str = "method") -> None:
            calls.append(what)

    @worker.task(topic="t", every=0.2, max_attempts=2, name="coroutine", aliases=("old.name", "taken"))
    async def coroutine(*, what: str = "coroutine") -> None:
        calls.append(what)

    worker.task(name="Отчёт/раз", topic="t", every=Every(interval=0.2, tags=["x"], owner="shop"))(Sweeper().sweep)
    worker.task(topic="u", every=0.2, name="x" * 200)(lambda: calls.append("lambda"))
    running.every("old.name", interval=300, topic="t", payload={"task": "old.name", "args": [], "kwargs": {}})
    running.every("taken", interval=300, topic="t", payload="of another program")
    with engines.working(worker):
        wait_until(lambda: set(calls) == {"method", "coroutine", "lambda"}, "all of them run")
        names = [each.name for each in running.schedules()]
        assert [name for name in names if name in ("old.name", "taken")] == ["taken"], "the alias is served by the task"
        for each in names:
            running.schedule(each).remove()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_worker_of_other_topics_does_not(engines: Engines, running: Engine) -> None:
    @running.task(topic="a", name="sweep", every=60)
    def sweep() -> None: ...

    @running.task(topic="b", name="clean", every=60)
    def clean() -> None: ...

    worker = running.worker(["b"])
    with engines.working(worker):
        wait_until(lambda: running.schedules(), "one is declared")
    assert [each.name for each in running.schedules()] == ["clean"]


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_can_not_recur_is_refused_at_the_decoration(engine: Engine) -> None:
    def send(to: str) -> None: ...

    with pytest.raises(InvalidOption, match="missing a required argument: 'to'; every= calls it without arguments"):
        engine.task(name="send", every=60)(send)
    with pytest.raises(InvalidOption, match="cron can't be 'daily'"):
        engine.task(name="send", every="daily")
    with pytest.raises(InvalidOption, match=r"every=\[5\] is not possible"):
        engine.task(name="send", every=[5])  # type: ignore[call-overload]  # on purpose
