"""``pause(topic, until=)`` ends by itself, for the whole fleet."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import pytest

from shardq import Engine
from shardq.core.dispatcher.resuming import Resumer
from shardq.errors import BadInput, InvalidDelay, NaiveDatetime
from tests.support.engines import Engines
from tests.support.states import FAR_S, claim, make_ready
from tests.support.waiting import wait_until


@pytest.mark.parametrize("form", [float, lambda at: dt.datetime.fromtimestamp(at, dt.UTC)])
def test_a_pause_ends_in_time(running: Engine, other: Engine, form: Callable[[float], Any]) -> None:
    make_ready(running, 1)
    until = time.time() + 1
    other.pause("mail", until=form(until))
    consumer = running.consumer("mail")
    assert consumer.claim(1) == []
    seen = running.stats().topics["mail"]
    assert (seen.paused, seen.paused_until) == (True, running.stats().topics["mail"].paused_until)
    assert seen.paused_until is not None
    assert abs(seen.paused_until.timestamp() - until) < 0.01
    assert claim(consumer, 1)
    assert -0.1 < time.time() - until < 2, "a busy machine is late"
    assert (running.topology.paused, running.stats().topics["mail"].paused_until) == (frozenset(), None)
    assert "until" in other.changes()[0].what


def test_it_is_ended_before_by_resume_and_taken_back_by_another_pause(running: Engine, other: Engine) -> None:
    make_ready(running, 1)
    running.pause("mail", until=time.time() + FAR_S)
    other.resume("mail")
    assert claim(running.consumer("mail"), 1)
    running.pause("mail", until=time.time() + 0.5)
    other.pause("mail")
    time.sleep(1)
    assert running.topology.paused == {"mail"}, "this one has no end"


def test_it_ends_although_nobody_dispatched_at_its_time(engines: Engines, engine: Engine) -> None:
    engine.pause("mail", until=time.time() + 0.2)
    engine.pause("sms", until=time.time() + FAR_S)
    time.sleep(0.4)
    engine.start()
    wait_until(lambda: engine.topology.paused == {"sms"}, "the pause that is over has ended", timeout=5)


@pytest.mark.slow
def test_another_dispatcher_ends_it_where_the_first_can_not(running: Engine, other: Engine) -> None:
    other.start()
    dispatchers = [dispatcher for engine in (running, other) if (dispatcher := engine._running.dispatcher)]
    wait_until(lambda: all(len(each.members) == 2 for each in dispatchers), "they know each other")
    first = min(dispatchers, key=lambda each: each.process)
    [resumer] = [each for each in first.beside if isinstance(each, Resumer)]
    resumer.loop.stop()
    running.pause("mail", until=time.time() + 0.1)
    wait_until(lambda: not running.topology.paused, "the other has ended it", timeout=10)


def test_configure_takes_it(running: Engine) -> None:
    at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=FAR_S)
    edited = running.configure(topics={"mail": {"pause": at}, "sms": {"pause": True}})
    assert edited["mail"].paused_until == -(at.timestamp() * -1000 // 1)
    assert edited["sms"].paused_until == 0
    assert running.configure(topics={"mail": {"pause": False}})["mail"].paused_until == 0


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda engine: engine.pause("mail", until="soon"), InvalidDelay, "until can't be 'soon'; give an aware"),
        (lambda engine: engine.pause("mail", until=dt.datetime.now()), NaiveDatetime, "until=.* has no time zone"),
        (
            lambda engine: engine.configure(topics={"mail": {"pause": "soon"}}),
            BadInput,
            "pause='soon' is not possible; give True",
        ),
        (lambda engine: engine.hold("mail", key="a", until="soon"), InvalidDelay, "until can't be 'soon'"),
    ],
)
def test_a_wrong_instant_is_refused_in_words(
    running: Engine, call: Callable[[Engine], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call(running)
