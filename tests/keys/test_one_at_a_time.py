"""Of each key as many as its topic allows, in due order where that is one: by several consumers and dispatchers."""

from __future__ import annotations

import pytest

from shardq import Engine, Task
from shardq.engine.options import OnFailure
from tests.keys.account import TOPIC, Options
from tests.keys.running import account, drained, taking

KEYS, EACH = 12, 25


def pushed_to(engine: Engine) -> list[str]:
    """One after the other, so that each has its place."""
    return [engine.push(n, topic=TOPIC, key=f"k{n % KEYS}") for n in range(KEYS * EACH)]


@pytest.mark.parametrize(
    ("on_failure", "verbs"),
    [
        ("wait", {"ack": 0.8, "retry": 0.1, "lapse": 0.02}),
        ("skip", {"ack": 0.8, "retry": 0.1, "snooze": 0.1, "lapse": 0.02}),
        ("wait", {"ack": 0.8, "snooze": 0.2}),
    ],
)
@pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)
def test_no_two_leases_of_a_key_overlap(url: str, name: str, on_failure: OnFailure, verbs: dict[str, float]) -> None:
    with Engine(url, name=name, shards=4) as engine, Engine(url, name=name, shards=4) as other:
        engine.limit(TOPIC, per_key=1, on_failure=on_failure)
        engine.start()
        other.start()
        with taking(engine, url, Options(verbs=verbs, lease=0.4, work_s=0.002)) as books:
            ids = pushed_to(engine)
            drained(url, name)
    found = account(books)
    found.assert_all(ids)
    found.assert_never_more(1)
    if on_failure == "wait" and "snooze" not in verbs:
        found.assert_in_order()


def test_as_many_as_the_window_and_no_more(url: str, name: str) -> None:
    with Engine(url, name=name, shards=4) as engine, Engine(url, name=name, shards=4) as other:
        engine.limit(TOPIC, per_key=5)
        engine.start()
        other.start()
        options = Options(verbs={"ack": 0.8, "retry": 0.1, "snooze": 0.1, "lapse": 0.02}, lease=0.4)
        ids = engine.push_many([Task(n, topic=TOPIC, key=f"k{n % 4}") for n in range(300)])
        with taking(engine, url, options) as books:
            drained(url, name)
    found = account(books)
    found.assert_all(ids)
    found.assert_never_more(5)
    with pytest.raises(AssertionError):
        found.assert_never_more(3)  # there were so many
