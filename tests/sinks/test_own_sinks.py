"""A sink of somebody's own that does what no sink should: its route goes on, and health says what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest

from shardq import Engine, Task
from shardq.features.sinks import Message, Sent, Sink, registry
from tests.sinks.seen import left, sink_stats
from tests.support.states import state_of
from tests.support.waiting import wait_until


class ClumsySink(Sink):
    answer: ClassVar[Callable[[Sequence[Message]], Any]]

    def __init__(self, url: str) -> None:
        pass

    def send(self, batch: Sequence[Message]) -> Any:
        return type(self).answer(batch)


def _well(batch: Sequence[Message]) -> Any:
    return [Sent()] * len(batch)


def _exit(_: Sequence[Message]) -> Any:
    raise SystemExit(3)


@pytest.fixture
def clumsy(feeding: Engine, monkeypatch: pytest.MonkeyPatch) -> type[ClumsySink]:
    point = EntryPoint("clumsy", f"{__name__}:ClumsySink", registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == registry.GROUP else [])
    monkeypatch.setattr(ClumsySink, "answer", _well, raising=False)
    feeding.forward("mail", to="clumsy://here")
    return ClumsySink


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (_exit, "SystemExit: 3"),
        (lambda batch: None, "ClumsySink.send returned NoneType for 1 messages; return a list with one of Sent(), Ref"),
        (lambda batch: [], "ClumsySink.send returned list of 0 for 1 messages"),
        (lambda batch: [True], "ClumsySink.send answered bool for this task; answer one of Sent(), Refused(reason)"),
        (lambda batch: [Sent], "ClumsySink.send answered the class Sent for this task"),
    ],
    ids=["exit", "none", "too few", "bool", "class"],
)
def test_what_is_wrong_is_said_and_the_relay_goes_on(
    feeding: Engine,
    clumsy: type[ClumsySink],
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Sequence[Message]], Any],
    told: str,
) -> None:
    monkeypatch.setattr(clumsy, "answer", answer)
    feeding.push(1, topic="mail", max_attempts=1)
    wait_until(lambda: told in sink_stats(feeding, "mail").error, "health says it")
    monkeypatch.setattr(clumsy, "answer", _well)
    wait_until(lambda: left(feeding) == 0, "it has gone")


def test_an_answer_of_another_type_is_the_failure_of_its_task(
    feeding: Engine, clumsy: type[ClumsySink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clumsy, "answer", lambda batch: ["oh" if b"bad" in each.payload else Sent() for each in batch])
    feeding.pause("mail")
    bad = feeding.push("bad", topic="mail", max_attempts=1)
    for number in range(20):
        feeding.push(number, topic="mail")
    feeding.resume("mail")

    def is_dead() -> bool:
        feeding.push("more", topic="mail")
        return state_of(feeding, bad) == "dead"

    wait_until(is_dead, "it is dead")
    task = feeding.get(bad)
    assert task is not None
    assert "answered str for this task" in (task.reason or "")
    assert sink_stats(feeding, "mail").failed >= 1


def test_an_unexpected_error_is_logged_with_its_traceback_once(
    feeding: Engine, clumsy: type[ClumsySink], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def settles_nothing(*_: object) -> None:
        tries.append(1)
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr("shardq.delivery.loop.settle", settles_nothing)
        feeding.push(1, topic="mail")
        wait_until(lambda: "a defect" in sink_stats(feeding, "mail").error, "health says it")
        feeding.push_many([Task(number, topic="mail") for number in range(600)])
        wait_until(lambda: len(tries) > 2, "it was met again")
    tracebacks = [record for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR]
    assert len(tracebacks) == 1


def test_a_sink_that_is_down_ages_its_tasks_and_counts_them_as_dispatched_once(
    feeding: Engine, clumsy: type[ClumsySink], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Sequence[Message]) -> Any:
        raise ConnectionError("nobody listens")

    monkeypatch.setattr(clumsy, "answer", fails)
    feeding.push_many([Task(number, topic="mail") for number in range(40)])
    wait_until(lambda: sink_stats(feeding, "mail").failed >= 3, "it is down")
    first = feeding.stats().topics["mail"].oldest_ready or 0.0
    tries = sink_stats(feeding, "mail").failed
    wait_until(lambda: sink_stats(feeding, "mail").failed > tries, "it was tried again")

    def is_as_before() -> bool:
        seen = feeding.stats().topics["mail"]
        return seen.dispatched == 40 and (seen.oldest_ready or 0.0) > first

    wait_until(is_as_before, "they wait since then, and were dispatched once")
