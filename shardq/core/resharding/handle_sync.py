# Generated from handle_aio.py by `make fmt`: change that one.
"""The handle that ``resize``, ``expand`` and ``shrink`` return: the new number is in force, and the dispatchers go on
moving tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shardq.core.model.checks import check_seconds
from shardq.core.operation import Operation, run
from shardq.core.resharding.progress import DispatcherWatch, Progress

if TYPE_CHECKING:
    from shardq.core.drivers.sync import Driver


class Growth:
    """A change of the number of shards: to ``wait`` for its end, or to look at its ``progress``.

    >>> growth = engine.growth()
    >>> print((growth.progress()).fraction)
    """

    def __init__(
        self,
        driver: Driver,
        progress: Callable[[], Operation[Progress]],
        dispatchers: Callable[[], Operation[Sequence[str]]],
    ) -> None:
        self._driver = driver
        self._progress = progress
        self._dispatchers = dispatchers
        self._seen: Progress | None = None

    def __repr__(self) -> str:
        """Shows what was seen last."""
        return f"<{type(self).__name__}: {self._seen or 'progress() has not been asked yet'}>"

    def progress(self) -> Progress:
        """Asks the servers how far it is.

        >>> progress = growth.progress()
        >>> print(progress.moved, progress.fraction)
        """
        self._seen = run(self._driver, self._progress(), deadline=self._deadline())
        return self._seen

    def _deadline(self) -> float:
        return time.monotonic() + self._driver.settings.timeout

    def done(self) -> bool:
        """Asks the servers, too: True when every task is where it belongs.

        >>> growth.done()
        True
        """
        return (self.progress()).done

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every task is where it belongs. Returns False if that takes longer than ``timeout`` seconds. Each
        look at the servers has the engine's timeout for itself.

        The dispatchers move the tasks; a warning is logged when none runs. Ready and leased tasks do not move: they are
        waited for.

        >>> if not growth.wait(timeout=600):
        ...     print("tasks are still moved")
        """
        if timeout is not None:
            check_seconds(timeout, "timeout")
        until = None if timeout is None else time.monotonic() + timeout
        watch = DispatcherWatch(self._dispatchers)
        while not self.done():
            if until is not None and time.monotonic() >= until:
                return False
            run(self._driver, watch.pause(), deadline=self._deadline())
        return True
