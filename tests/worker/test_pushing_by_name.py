"""Functions pushed by name, and payloads decoded into types: a task that does not fit is retried or buried, never
dropped.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Literal, get_type_hints

import pytest

from shardq import Backoff, Conflict, Engine, Task
from shardq.delivery.handler import UNKNOWN_S
from shardq.errors import InvalidDelay, InvalidKey
from shardq.worker.named import CallOptions
from tests.support.engines import Engines
from tests.support.states import FAR_S, state_of
from tests.support.waiting import wait_until

SOON = Backoff(base=0.01, cap=0.02)


@pytest.mark.parametrize("by", ["engine", "worker"])
def test_a_function_is_called_with_its_arguments(
    engines: Engines, running: Engine, by: Literal["engine", "worker"]
) -> None:
    calls: list[Any] = []
    worker = running.worker()
    tasks = running if by == "engine" else worker

    @tasks.task(name="send")
    def send(user: str, text: str = "hello", *, urgent: bool = False) -> None:
        calls.append((user, text, urgent))

    @tasks.task(topic="slow", name="dig")
    async def dig(depth: int) -> None:
        calls.append(depth)

    with engines.working(worker):
        ids = [
            engines.done(send.push("a", "b")),
            engines.done(send.push("c", urgent=True)),
            engines.done(send.push("d")),
            engines.done(dig.options(delay=0.05).push(5)),
        ]
        wait_until(lambda: len(calls) == 4, "all are called")
        wait_until(lambda: {state_of(running, id) for id in ids} == {"gone"}, "all are acknowledged")
    assert {("a", "b", False), ("c", "hello", True), ("d", "hello", False), 5} == set(calls)
    assert ids[3].startswith("slow/")


def test_a_call_has_one_list_or_tuple_for_an_argument_as_it_is(engines: Engines, running: Engine) -> None:
    calls: list[Any] = []

    @running.task(name="add")
    def add(numbers: list[int]) -> None:
        calls.append(numbers)

    with engines.working(running.worker()):
        engines.done(add.push([1, 2]))
        wait_until(lambda: calls == [[1, 2]], "it is called")


def test_a_pushed_call_takes_the_options_of_a_push(engines: Engines, running: Engine) -> None:
    send = running.task(name="send", topic="mail")(print)
    later = send.options(delay=FAR_S, id="mine", headers={"a": "b"}, max_attempts=3)
    assert repr(later).startswith("<Pusher of send: {'topic': 'mail', ")
    assert engines.done(later.push(1)) == "mail/mine"
    task = running.get("mail/mine")
    assert task is not None
    assert (task.state, task.payload) == ("scheduled", {"task": "send", "args": [1], "kwargs": {}})
    assert (task.headers, task.max_attempts) == ({"a": "b"}, 3)
    # the same again, and with other arguments
    assert engines.done(later.push(2)).outcome == "kept"
    with pytest.raises(Conflict):
        engines.done(send.options(id="mine", on_conflict="reject").push())
    with pytest.raises(InvalidDelay):
        engines.done(send.options(delay=-1).push())
    assert engines.done(send.options(topic="other", id="mine", delay=FAR_S).push()) == "other/mine"


def test_a_call_may_have_a_key(engines: Engines, running: Engine) -> None:
    keys: list[Any] = []

    @running.task(topic="webhook", name="send")
    def send(text: str) -> None:
        keys.append(text)

    id = engines.done(send.options(key="ann", id="one").push("a"))
    [other] = running.push_many([send.options(key="ben").call("b")])
    assert (id, other.startswith("webhook/ben/")) == ("webhook/ann/one", True)
    with engines.working(running.worker()):
        wait_until(lambda: sorted(keys) == ["a", "b"], "both are called")
    engines.done(send.options(key="ann", id="two", delay=FAR_S).push("a"))
    assert engines.done(send.cancel("two")) == "gone"
    assert engines.done(send.cancel("two", key="ann")) == "cancelled"
    with pytest.raises(InvalidKey):
        send.cancel("two", key="a/b")


def test_a_task_is_cancelled_by_the_id_that_it_was_given(engines: Engines, running: Engine) -> None:
    send = running.task(name="send", topic="mail")(print)
    for id in ("mine", "mail/mine"):
        engines.done(send.options(delay=900, id="mine").push(1))
        assert engines.done(send.cancel(id)) == "cancelled"
    assert engines.done(send.cancel("mine")) == "gone"


def test_the_options_are_those_of_a_push(running: Engine) -> None:
    send = running.task(name="send")(print)
    options = get_type_hints(CallOptions)
    of_push = get_type_hints(Engine.push)
    assert options == {name: of_push[name] for name in list(of_push) if name not in ("payload", "unknown", "return")}
    with pytest.raises(TypeError, match=r"options\(\) has no dely=; it takes delay, at, "):
        send.options(dely=5)  # type: ignore[call-arg]  # that is the test


CALLS_OF_NOBODY = [{"task": "unknown", "args": []}, {"n": 1}, [1, 2], None, {"task": ["x"]}]


@pytest.mark.slow
def test_an_unknown_name_waits_for_a_worker_that_knows_it(
    engines: Engines,
    running: Engine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It costs no attempt: whatever the number of attempts and the backoff, nothing is dropped."""
    monkeypatch.setattr("shardq.worker.report.BEAT_S", 1.0)
    worker = running.worker(backoff=SOON, max_attempts=1)
    for n in range(30):
        worker.task(name=f"function{n:02}")(print)
    with caplog.at_level(logging.WARNING, logger="shardq.worker"), engines.working(worker):
        began = time.time()
        ids = running.push_many([Task(payload) for payload in CALLS_OF_NOBODY * 2])
        dues: list[float] = []

        def all_waiting() -> bool:
            tasks = [running.get(id) for id in ids]
            dues[:] = [task.due.timestamp() for task in tasks if task and task.due]
            return len(dues) == len(ids) and min(dues) > began + UNKNOWN_S - 1

        wait_until(all_waiting, "all are scheduled again")
        assert {(task.attempt, task.failures) for id in ids if (task := running.get(id))} == {(1, 0)}

        def reported() -> dict[str, int]:
            return {call.task: call.count for member in running.fleet() for call in member.unknown}

        wait_until(lambda: reported() == {"unknown": 2, "": 8}, "its report names them", timeout=30)
    said = [record.getMessage() for record in caplog.records if record.name == "shardq.worker"]
    assert len(said) == 2  # and not once for a task
    known = "known to this worker, which has: function00, function01,"
    assert any(f"no function named 'unknown' is {known}" in line for line in said)
    assert any(f"the payload names no function that is {known}" in line for line in said)
    assert all("function19 and 10 more" in line for line in said)


@pytest.mark.slow
def test_an_unknown_name_is_for_another_worker(
    engines: Engines, running: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with its last attempt."""
    monkeypatch.setattr("shardq.delivery.handler.UNKNOWN_S", 0.05)
    monkeypatch.setattr("shardq.worker.report.BEAT_S", 1.0)
    calls: list[str] = []
    older, newer = running.worker(max_attempts=1), running.worker(max_attempts=1)
    older.task(name="old")(print)
    newer.task(name="new", max_attempts=1)(calls.append)
    with engines.working(older):
        id = running.push({"task": "new", "args": ["a"], "kwargs": {}}, max_attempts=1)
        wait_until(lambda: any(member.unknown for member in running.fleet()), "one has met it", timeout=30)
        assert state_of(running, id) != "dead"
        with engines.working(newer):
            wait_until(lambda: calls == ["a"], "the other has taken it", timeout=30)
            wait_until(lambda: state_of(running, id) == "gone", "it is done")


def test_wrong_arguments_are_a_failure(engines: Engines, running: Engine) -> None:
    """Of a producer whose function takes others than the worker's."""
    worker = running.worker(max_attempts=2, backoff=SOON)
    worker.task(name="send")(lambda user: None)
    with engines.working(worker):
        id = running.push({"task": "send", "args": [1, 2, 3], "kwargs": {}})
        wait_until(lambda: state_of(running, id) == "dead", "it is buried")
    task = running.get(id)
    assert task is not None
    assert "TypeError" in str(task.reason)
