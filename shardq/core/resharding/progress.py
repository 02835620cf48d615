"""How far a change of the number of shards is, and waiting for its end. The handle that waits is ``handle_aio``."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardq.core.operation import Operation, Pause

log = logging.getLogger("shardq")

LOOK_S = 0.2

ALONE_S = 5.0
"""After so long, and again and again, a waiting caller checks if anybody moves the tasks. Longer than one dispatcher
needs to take over from another.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a change of the number of shards.

    >>> progress = engine.growth().progress()
    >>> print(f"{progress.fraction:.0%} of {progress.of} shards, {progress.moved} tasks moved")
    """

    shards: int
    in_force: bool
    swept: int
    """Shards in which no task belongs elsewhere any more."""
    of: int
    moved: int
    """Tasks moved out of shards since those were opened, also out of shards that the change retires."""
    done: bool
    """True when every task is where it belongs, and the earlier number is forgotten."""

    @property
    def fraction(self) -> float:
        return 1.0 if self.done else self.swept / self.of


class DispatcherWatch:
    """Warns a waiting caller, once, when no dispatcher runs."""

    def __init__(self, dispatchers: Callable[[], Operation[Sequence[str]]]) -> None:
        self._dispatchers = dispatchers
        self._ask_at = time.monotonic() + ALONE_S

    def pause(self) -> Operation[None]:
        """The time between two looks, after a look at the dispatchers if it is time for that."""
        if time.monotonic() >= self._ask_at:
            alone = not (yield from self._dispatchers())
            self._ask_at = math.inf if alone else time.monotonic() + ALONE_S
            if alone:
                log.warning(
                    "waiting for a change of the number of shards, but no dispatcher runs to move the tasks: "
                    "call engine.start() here or in another process, or start `shardq run`"
                )
        yield Pause(LOOK_S)
