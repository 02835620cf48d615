# Generated from handle_aio.py by `make fmt`: change that one.
"""The handle that ``resize`` returns: the new number is in force, and the dispatchers go on moving tasks; or it was a
dry run, which tells what would be moved.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardq.core.model.checks import check_seconds
from shardq.core.model.printable import counted
from shardq.core.operation import run
from shardq.core.resharding.resizing import Estimate, Flow, Progress, nobody_moves, pause, progress
from shardq.errors import InvalidOption

if TYPE_CHECKING:
    from shardq.core.drivers.sync import Driver
    from shardq.core.topology_cache import TopologyCache


class Resize:
    """A change of the number of shards: to ``wait`` for its end, to look at its ``progress``, or, after a dry run, to
    see what it would move. Only a dry run for another number has estimates.

    >>> resize = engine.resize(64, dry_run=True)
    >>> print(resize.tasks, resize.bytes, resize.nodes)
    """

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        shards: int,
        span: int,
        estimate: Estimate | None = None,
    ) -> None:
        self.shards = shards
        """The number of shards after the change."""
        self.flows: list[Flow] = [] if estimate is None else estimate.flows
        """From shard to shard: the tasks and bytes that would move."""
        self.nodes: Mapping[str, tuple[int, int]] = {} if estimate is None else estimate.nodes
        """Node → the tasks that would leave it and those that would come. Tasks that move within a node count in both.
        """
        self.tasks: int | None = None if estimate is None else sum(flow.tasks for flow in self.flows)
        """The tasks that would move; None where that was not estimated."""
        self.bytes: int | None = None if estimate is None else sum(flow.bytes for flow in self.flows)
        """The bytes of their records; None where they were not estimated."""
        self._driver = driver
        self._cache = cache
        self._span = span
        """The shards that were in use when it began: tasks moved out of those count."""
        self._seen: Progress | None = None

    def __repr__(self) -> str:
        """Shows what was seen last."""
        if self.flows:
            state = f"a dry run, {counted(self.tasks or 0, 'task')} would move"
        else:
            state = str(self._seen or "progress() has not been asked yet")
        return f"<{type(self).__name__} to {counted(self.shards, 'shard')}: {state}>"

    def progress(self) -> Progress:
        """Asks the servers how far it is.

        >>> progress = resize.progress()
        >>> print(progress.moved, progress.fraction)
        """
        self._seen = run(self._driver, progress(self._cache, shards=self._span), deadline=self._deadline())
        return self._seen

    def _deadline(self) -> float:
        return time.monotonic() + self._driver.settings.timeout

    def done(self) -> bool:
        """Asks the servers, too: True when every task is where it belongs. A dry run for another number raises
        InvalidOption: it has no end.

        >>> resize.done()
        True
        """
        if self.flows:
            raise InvalidOption(
                f"resize({self.shards}, dry_run=True) has begun nothing to wait for; resize({self.shards}) does"
            )
        return (self.progress()).done

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every task is where it belongs. Returns False if that takes longer than ``timeout`` seconds. Each
        look at the servers has the engine's timeout for itself.

        The dispatchers move the tasks. While none runs the wait has no end, and within seconds a warning says so. Ready
        and leased tasks do not move: they are waited for.

        >>> if not resize.wait(timeout=600):
        ...     print("tasks are still moved")
        """
        if timeout is not None:
            check_seconds(timeout, "timeout")
        until = None if timeout is None else time.monotonic() + timeout
        look = nobody_moves(self.shards)
        while not self.done():
            if until is not None and time.monotonic() >= until:
                return False
            run(self._driver, pause(self._cache, look), deadline=self._deadline())
        return True
