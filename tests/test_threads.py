"""A loop repeats its step whatever the step raises: the log has a line for a cause, and one when the step works."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from shardq import Unanswered, Unavailable
from shardq.core.threads import FIRST_PAUSE_S, LONGEST_PAUSE_S, Loop, ended
from shardq.errors import AccessDenied
from tests.support.waiting import wait_until

log = logging.getLogger("shardq.test")

Step = Callable[[], float | None]


class Stubborn(Exception):
    """An error of the user's own making, whose text can't be had."""

    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.fixture
def loops() -> Iterator[list[Loop]]:
    made: list[Loop] = []
    yield made
    for loop in made:
        loop.stop()
    ended(made)


def started(loops: list[Loop], step: Step, *, failed: Callable[[BaseException], bool] = lambda _: False) -> Loop:
    loop = Loop("shardq-test", step, log, fails="it fails", works="it works", fields={"shard": 3}, failed=failed)
    loops.append(loop)
    loop.start()
    return loop


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "shardq.test"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("errors", "lines"),
    [
        ([Unavailable("away"), Unanswered("late"), Unavailable("gone")], ["it fails: away"]),
        ([Unavailable("away"), AccessDenied("no")], ["it fails: away", "it fails: no"]),
        ([SystemExit(1), KeyError("odd")], ["it fails: 1", "it fails: 'odd'"]),
        ([Stubborn()], None),
    ],
    ids=["one cause", "two causes", "not of ours", "without a text"],
)
def test_a_cause_is_said_once_and_its_end_once(
    loops: list[Loop], caplog: pytest.LogCaptureFixture, errors: list[BaseException], lines: list[str] | None
) -> None:
    faults: list[str] = []
    left = [*errors, *errors]

    def step() -> None:
        if left:
            faults.append(loop.fault)
            raise left.pop(0)

    loop = Loop("shardq-test", step, log, fails="it fails", works="it works", fields={"shard": 3})
    loops.append(loop)
    assert loop.state == "starting"
    loop.start()
    wait_until(lambda: loop.state == "running", "it works again")
    assert faults[1].startswith(type(errors[0]).__name__)
    assert loop.fault == ""
    if lines is not None:
        assert said(caplog) == [*((logging.ERROR, line) for line in lines), (logging.WARNING, "it works")]
        fields = [(record.__dict__["shard"], record.exc_info is None) for record in caplog.records]
        assert fields[0] == (3, isinstance(errors[0], Unavailable))


def test_the_log_has_no_line_where_it_has_the_cause_elsewhere(
    loops: list[Loop], caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def step() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Unavailable("away")

    loop = started(loops, step, failed=lambda exc: isinstance(exc, Unavailable))
    wait_until(lambda: loop.state == "running", "it works again")
    assert said(caplog) == []


def test_the_pause_grows_to_its_longest_and_a_wake_cuts_it(loops: list[Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def longest(low: float, high: float) -> float:
        pauses.append(low)
        return high

    monkeypatch.setattr("random.uniform", longest)

    def step() -> None:
        raise Unavailable("away")

    loop = started(loops, step)
    for count in range(1, 12):
        wait_until(lambda: len(pauses) == count, "it pauses")  # noqa: B023  called at once
        loop.wake()
    assert loop._pause_s == LONGEST_PAUSE_S > FIRST_PAUSE_S
    assert loop.state == "failing"


def test_it_sleeps_until_it_is_woken_and_ends_in_time(loops: list[Loop]) -> None:
    steps: list[str] = []
    held = threading.Event()

    def step() -> float | None:
        steps.append(threading.current_thread().name)
        held.wait(30.0)
        return None

    loop = started(loops, step)
    loop.start()
    wait_until(lambda: steps == ["shardq-test"], "the first step")
    loop.wake()  # during the step: another one follows
    held.set()
    wait_until(lambda: len(steps) == 2, "the second step")
    assert loop.thread is not None
    held.clear()
    loop.wake()
    wait_until(lambda: len(steps) == 3, "it is held up")
    loop.stop()
    ended([loop])
    assert loop.thread.is_alive(), "it is left behind"
    assert loop.state == "stopped"
    held.set()
    loop.thread.join()
    loop.start()
    assert len(steps) == 3, "it never starts again"


def test_one_that_is_stopped_first_never_starts() -> None:
    loop = Loop("shardq-test", lambda: None, log, fails="", works="")
    loop.stop()
    loop.start()
    assert loop.thread is None


def test_a_loop_of_the_parent_is_not_in_the_child(loops: list[Loop]) -> None:
    loop = started(loops, lambda: None)
    with loop._lock:  # held by another thread of the parent, as far as the child knows
        child = os.fork()
        if not child:
            loop.start()
            loop.stop()
            ended([loop])
            os._exit(0 if loop.thread is None and loop.state == "stopped" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop.state == "running"
