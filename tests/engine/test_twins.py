"""The engine and the consumer for threads have the names and arguments of their twins for asyncio, as far as they are
written by hand. The rest is generated (``tests/test_unasync.py``).
"""

from __future__ import annotations

import inspect

import pytest

from shardq import AsyncConsumer, AsyncEngine, Consumer, Engine

THREADS_ONLY = {
    # Coalescing pushes is what threads need that push one at a time: coroutines of one loop share its pipelined
    # connections already, and gather() or push_many() their pushes.
    "buffered",
}
OPTIONS_OF_THREADS_ONLY = {
    # Functions that keep a core busy need processes of their own; coroutines are for what waits.
    "worker": {"processes"},
}
NOT_AWAITED = {
    Engine: {"consumer", "worker"},
    Consumer: {"close"},
}
"""The same plain call on both: nothing is sent by making a consumer or a worker, nor by telling a claim to end."""


def public(of: type) -> dict[str, object]:
    return {name: member for name, member in vars(of).items() if not name.startswith("_")}


TWINS = [(Engine, AsyncEngine), (Consumer, AsyncConsumer)]


@pytest.mark.parametrize(("ours", "theirs"), TWINS)
def test_same_names(ours: type, theirs: type) -> None:
    assert set(public(ours)) - set(public(theirs)) <= THREADS_ONLY
    assert set(public(theirs)) <= set(public(ours))


@pytest.mark.parametrize(("ours", "theirs"), TWINS)
def test_same_arguments_and_defaults(ours: type, theirs: type) -> None:
    for name, member in public(theirs).items():
        if callable(member):
            one, other = (inspect.signature(getattr(cls, name)).parameters for cls in (ours, theirs))
            left_out = OPTIONS_OF_THREADS_ONLY.get(name, set())
            assert [each for each in one.values() if each.name not in left_out] == list(other.values()), name


@pytest.mark.parametrize(("ours", "theirs"), TWINS)
def test_what_talks_to_a_server_is_awaited(ours: type, theirs: type) -> None:
    for name, member in public(theirs).items():
        if callable(member):
            assert inspect.iscoroutinefunction(member) == (name not in NOT_AWAITED[ours]), name
