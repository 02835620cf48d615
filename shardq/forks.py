"""The child of a fork: who is told there to begin anew.

A child has one thread, the one that forked. What the parent's other threads were at stands still in the child for ever:
a lock that one of them held stays locked, a buffer is never sent, a heartbeat never beats. And what is the parent's is
still used by the parent: its connections, its names, its numbers. So whatever has any of these registers here and is
told in the child, before anything else runs there.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Something that a child must not share with its parent."""

    def forked(self) -> None:
        """Begins anew, or refuses its service from now on. Waits for nobody: its own locks may be locked for good."""


_known: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(one: Forked) -> None:
    """From now on ``one`` is told in every child, as long as it lives."""
    _known.add(one)


def _tell() -> None:
    for one in list(_known):
        one.forked()


os.register_at_fork(after_in_child=_tell)
