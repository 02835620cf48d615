"""The two drivers have the same names and arguments, and differ in waiting only."""

from __future__ import annotations

import inspect

from shardq.core.drivers.aio import AsyncDriver
from shardq.core.drivers.sync import Driver

THREADS_ONLY = {"dedicated", "borrow", "pubsub", "on_new_map", "ask", "begin", "finish", "carry", "connect", "look"}
"""What is begun here has its connection for itself."""
ASYNCIO_ONLY = {"abandon", "begin_all", "finish"}
"""A loop can end under its connections; threads close their own. A connection takes what many begin."""


def public(of: type) -> dict[str, object]:
    return {name: getattr(of, name) for name in dir(of) if not name.startswith("_")}


def test_same_names() -> None:
    assert set(public(Driver)) - THREADS_ONLY == set(public(AsyncDriver)) - ASYNCIO_ONLY


def test_same_arguments() -> None:
    for name, member in public(AsyncDriver).items():
        if callable(member) and name not in ASYNCIO_ONLY:
            twin = getattr(Driver, name)
            ours = inspect.signature(member).parameters
            theirs = inspect.signature(twin).parameters
            assert list(ours.values()) == list(theirs.values()), name
