"""The last changes that operators made to an engine: who, when and what. A list in the control slot, the newest first.

A change that could not be noted was made all the same: what notes it raises nothing.
"""

from __future__ import annotations

import datetime as dt
import getpass
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from shardq.core.calls import control
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError

T = TypeVar("T")

KEPT = 100

_MOST = 200
"""Characters of a change."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change that an operator made: a pause, a limit, a route, a resize, a setting, or a command on many tasks.

    >>> for change in engine.changes():
    ...     print(change.at, change.by, change.what)
    """

    at: dt.datetime
    """In UTC, by the clock of the process that made it."""
    by: str
    """The user, the host and the program with its process id."""
    what: str
    """A sentence."""


def noted(cache: TopologyCache, making: Operation[T], what: str | Callable[[T], str]) -> Operation[T]:
    """Makes a change, and notes it when it is made. ``what``: in words, or a function of its result; empty: nothing."""
    result = yield from making
    yield from note(cache, what if isinstance(what, str) else what(result))
    return result


def note(cache: TopologyCache, what: str) -> Operation[None]:
    if not what:
        return
    change = Change(at=dt.datetime.now(dt.UTC), by=_this_process(), what=what[:_MOST])
    with suppress(ShardqError):
        yield control.add_change(cache.control, msgspec.json.encode(change)).briefly()
        yield control.keep_changes(cache.control, KEPT).briefly()


def read_changes(cache: TopologyCache) -> Operation[list[Change]]:
    texts: list[bytes] = yield control.read_changes(cache.control)
    found: list[Change] = []
    for text in texts:
        with suppress(msgspec.MsgspecError):  # written by another version
            found.append(msgspec.json.decode(text, type=Change))
    return found


def _this_process() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid()) if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()} ({Path(sys.argv[0]).name or 'python'}, {os.getpid()})"
