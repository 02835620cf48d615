"""The methods that both engines write by hand have the same names and arguments. The others are generated."""

from __future__ import annotations

import inspect

from shardq import AsyncEngine, Engine

THREADS_ONLY = {
    # Coalescing pushes is what threads need that push one at a time: coroutines of one loop share its pipelined
    # connections already, and gather() or push_many() their pushes.
    "buffered",
}
OPTIONS_OF_THREADS_ONLY = {
    # Functions that keep a core busy need processes of their own; coroutines are for what waits.
    "worker": {"processes"},
}
NOT_AWAITED = {"consumer", "worker"}
"""The same plain call on both: nothing is sent by making a consumer or a worker."""


def by_hand(engine: type) -> dict[str, object]:
    return {name: member for name, member in vars(engine).items() if not name.startswith("_")}


def test_same_names() -> None:
    assert set(by_hand(Engine)) - THREADS_ONLY == set(by_hand(AsyncEngine))


def test_same_arguments_and_defaults() -> None:
    for name in by_hand(AsyncEngine):
        ours, theirs = (inspect.signature(getattr(engine, name)).parameters for engine in (Engine, AsyncEngine))
        left_out = OPTIONS_OF_THREADS_ONLY.get(name, set())
        assert [each for each in ours.values() if each.name not in left_out] == list(theirs.values()), name


def test_what_talks_to_a_server_is_awaited() -> None:
    for name, member in by_hand(AsyncEngine).items():
        assert inspect.iscoroutinefunction(member) == (name not in NOT_AWAITED), name
