"""Pauses Python's garbage collector, also across a fork."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from shardq.core import forks


@contextmanager
def uncollected() -> Iterator[None]:
    """Pauses the garbage collector while many objects are made that hold nothing that could be garbage. It would go
    through all of a process's objects several times in a large push: half a microsecond a task.
    """
    if not gc.isenabled():
        yield
        return
    try:
        _collector.is_paused = True
        gc.disable()
        yield
    finally:
        gc.enable()
        _collector.is_paused = False


class _Collector:
    is_paused = False
    """True while a block here has paused it."""

    def forked(self) -> None:
        """Goes on in the child of a fork, which does not have the thread that was in the block."""
        if self.is_paused:
            gc.enable()
            self.is_paused = False


_collector = _Collector()
forks.watch(_collector, _Collector.forked)
