"""The first key of an engine: its dispatchers run already, and serve keys from then on."""

from __future__ import annotations

from shardq import Engine
from tests.support.states import claim


def test_dispatchers_that_run_serve_the_first_key(running: Engine, other: Engine) -> None:
    running.push("plain")
    consumer = other.consumer()
    assert [each.payload for each in claim(consumer, 1)] == ["plain"]
    running.push("keyed", key="customer-7")
    assert [each.payload for each in claim(consumer, 1)] == ["keyed"]
