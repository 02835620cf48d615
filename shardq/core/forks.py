"""The child of a fork: tells those who must begin anew there.

A child has one thread, the one that forked. Whatever the parent's other threads were doing stands still in the child
for ever: a lock that one of them held stays locked, a buffer is never sent, a heartbeat never comes. And the parent
goes on using what is its own: connections, names, numbers. Whatever has any of these registers here, and is told in the
child before anything else runs there.

A child forked inside a handler or a hook is no worker: it ends where that ends. A child that is spawned has nothing of
its parent: what it would have to be sent says so, see ``OfOneProcess``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from shardq.errors import ShardqError

T = TypeVar("T")

_depth = 0

_known: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


class OfOneProcess:
    """A base for what another process makes anew."""

    def __reduce__(self) -> NoReturn:
        raise ShardqError(
            f"{type(self).__name__} can't be pickled, copied or sent to another process: its connections, locks and "
            "threads are this one's; make it there, by a function or a module that both import, with the same url and "
            "name"
        )


def watch(one: T, forked: Callable[[T], None]) -> None:
    """Calls ``forked(one)`` in every child, as long as ``one`` lives: it begins anew there, or refuses its service.

    The call must wait for nobody: the locks of ``one`` may be locked for good.
    """
    _known[one] = forked


def depth() -> int:
    """How many forks lead to this process: more after a call than before it in a child that was forked meanwhile."""
    return _depth


def leave(failure: BaseException | None) -> NoReturn:
    """Ends a child as a program would end: with the code of SystemExit, or with 1 and the traceback of another."""
    code = 0
    with contextlib.suppress(BaseException):
        if isinstance(failure, SystemExit):
            code = failure.code if isinstance(failure.code, int) else int(failure.code is not None)
            if failure.code is not None and not isinstance(failure.code, int):
                print(failure.code, file=sys.stderr)
        elif failure is not None:
            code = 1
            traceback.print_exception(failure)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)


def _tell() -> None:
    global _depth
    _depth += 1
    for one, forked in list(_known.items()):
        forked(one)


os.register_at_fork(after_in_child=_tell)
