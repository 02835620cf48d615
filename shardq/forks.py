"""The child of a fork: who is told there to begin anew.

A child has one thread, the one that forked. What the parent's other threads were at stands still in the child for ever:
a lock that one of them held stays locked, a buffer is never sent, a heartbeat never beats. And what is the parent's is
still used by the parent: its connections, its names, its numbers. So whatever has any of these registers here and is
told in the child, before anything else runs there.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_known: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def watch(one: T, forked: Callable[[T], None]) -> None:
    """Calls ``forked(one)`` in every child, as long as ``one`` lives: it begins anew there, or refuses its service.

    That must wait for nobody: the locks of ``one`` may be locked for good.
    """
    _known[one] = forked


def _tell() -> None:
    for one, forked in list(_known.items()):
        forked(one)


os.register_at_fork(after_in_child=_tell)
