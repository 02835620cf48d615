# Generated from listing_commands_aio.py by `make fmt`: change that one.
"""The commands that look at many tasks, or act on all that match. ``Engine`` inherits them."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from shardq.core.model.task import State, TaskInfo
from shardq.core.operation import Operation, run
from shardq.core.topology_cache import TopologyCache
from shardq.engine.arguments import check_reason, moved_due
from shardq.engine.base import EngineBase
from shardq.engine.changes import note
from shardq.features.history.history import History, read_history
from shardq.features.listing import forecast, reading
from shardq.features.listing.bulk import Bulk, BulkResult, bulk_query
from shardq.features.listing.forecast import Forecast, Horizon, check_horizon
from shardq.features.listing.query import Due, Query, TaskPage, check_limit

if TYPE_CHECKING:
    from shardq.core.drivers.sync import Driver

Progress = Callable[[BulkResult], object]
T = TypeVar("T")


class ListingCommands(EngineBase, ABC):
    """The commands of ``Engine`` on many tasks."""

    @abstractmethod
    def _open_driver(self, deadline: float) -> Driver: ...

    @abstractmethod
    def _carry_out(self, make: Callable[[TopologyCache], Operation[T]]) -> T: ...

    def tasks(
        self,
        *,
        topic: str | None = None,
        state: State | None = None,
        due: Due | None = None,
        holder: str | None = None,
        newest: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> TaskPage:
        """Returns a page of the tasks that match: a list, whose ``cursor`` is to be given with the next call, and is
        None at the end.

        Scheduled tasks are listed by due time, leased ones by the end of their lease and dead ones by the time of their
        death, the earliest first, across all shards; ready ones shard by shard and topic by topic, as they stand in
        their lists. Without ``state`` it is all scheduled ones, then ready, leased and dead. ``due``: scheduled tasks
        that are due from an instant on and before another, each an aware datetime or epoch seconds, or None for an open
        end. ``holder``: tasks leased by the consumer or worker of that name. ``newest``: dead tasks, the latest deaths
        first.

        The work of a call is bounded, however many tasks there are: it looks at 1,000 tasks of a shard at most, and
        returns what it has found. So a page may be shorter than ``limit``, even empty, and only the cursor tells the
        end. A task that stays as it is is listed once by a walk through the pages, also while shards are added or
        removed; one that changes meanwhile may be listed twice, or not at all.

        >>> page = engine.tasks(topic="mail", state="dead")
        >>> for task in page:
        ...     print(task.id, task.died, task.reason)
        >>> while page.cursor is not None:
        ...     page = engine.tasks(topic="mail", state="dead", cursor=page.cursor)
        """
        query = Query.checked(topic=topic, state=state, due=due, holder=holder, newest=newest)
        check_limit(limit)
        query.place(self.name, cursor)
        return self._carry_out(lambda cache: reading.task_page(cache, query, cursor, limit, self.options.codec))

    def dead(self, topic: str | None = None) -> Iterator[TaskInfo]:
        """Yields the dead tasks (dead letters) of a topic, or all, the earliest deaths first. Reads page by page, as
        ``tasks(state="dead")`` does.

        >>> for task in engine.dead("mail"):
        ...     print(task.id, task.died, task.reason)
        """
        page = self.tasks(topic=topic, state="dead")
        while True:
            for task in page:
                yield task
            if page.cursor is None:
                return
            page = self.tasks(topic=topic, state="dead", cursor=page.cursor)

    def forecast(self, horizon: Horizon = "hour") -> Forecast:
        """Counts the tasks that fall due in each minute of the next "hour", each hour of the next "day", or each day of
        the next "month" (30 days), by the servers' clock. Its time does not depend on the number of tasks.

        >>> forecast = engine.forecast("hour")
        >>> print(forecast.overdue, max(count for start, count in forecast.buckets), forecast.later)
        """
        check_horizon(horizon)
        return self._carry_out(lambda cache: forecast.forecast(cache, horizon))

    def history(self, horizon: Horizon = "hour") -> History:
        """Returns what was in each minute of the last "hour", each hour of the last "day", or each day of the last
        "month" (30 days), as dispatchers recorded it; ``forecast`` goes on where it ends.

        >>> past = engine.history("day")
        >>> print([(point.start, point.dispatched, point.late_p99_ms) for point in past.points if point.minutes])
        """
        return self._carry_out(lambda cache: read_history(cache, horizon))

    def cancel_all(
        self,
        *,
        topic: str | None = None,
        state: State | None = None,
        due: Due | None = None,
        everything: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Cancels the tasks that match: scheduled, ready and dead ones, or those of one ``state``. See ``tasks``.

        Tasks are cancelled page by page, each by its id, and ``progress`` is called after each page with how far it
        came; what it raises ends the command there. Each page has the engine's timeout for itself. ``dry_run`` only
        counts. A task that goes on between the look and the command is cancelled in its new state, unless it is leased
        by then. All tasks of a topic are removed faster by ``purge``.

        >>> result = engine.cancel_all(topic="mail", due=(None, dt.datetime.now(dt.UTC)))
        >>> print(result.done, "of", result.matched)
        """
        query = bulk_query("cancel", topic=topic, state=state, due=due, everything=everything)
        self._open_driver(self._deadline())
        return self._all(Bulk(self._map(), "cancel", query, count_only=dry_run), progress)

    def requeue_all(
        self,
        topic: str | None = None,
        *,
        reason: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Schedules the dead tasks of a topic, or of all with ``everything=True``, again: now, with all their attempts.
        Those that die anew meanwhile stay dead. ``dry_run`` and ``progress``: as in ``cancel_all``. ``reason``: only
        those that died of it, a reason's last line with ``#`` for each number, as pages group them.

        >>> print((engine.requeue_all("mail")).done, "tasks run again")
        >>> print((engine.requeue_all("mail", reason="TimeoutError: no answer in # s")).done)
        """
        query = bulk_query("requeue", topic=topic, everything=everything)
        check_reason(reason)
        self._open_driver(self._deadline())
        return self._all(Bulk(self._map(), "requeue", query, reason=reason, count_only=dry_run), progress)

    def reschedule_all(
        self,
        *,
        topic: str | None = None,
        state: State | None = None,
        due: Due | None = None,
        everything: bool = False,
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Gives the scheduled and ready tasks that match another due time, one for all: ``delay`` seconds after the
        beginning of the command, or ``at`` an instant. See ``tasks``, and ``cancel_all`` for the rest.

        >>> result = engine.reschedule_all(topic="mail", delay=3600)
        """
        query = bulk_query("reschedule", topic=topic, state=state, due=due, everything=everything)
        word = moved_due(delay, at)
        self._open_driver(self._deadline())
        return self._all(Bulk(self._map(), "reschedule", query, due=word, count_only=dry_run), progress)

    def _all(self, bulk: Bulk, progress: Progress | None) -> BulkResult:
        driver = self._open_driver(self._deadline())
        while run(driver, bulk.following(), deadline=self._deadline()):
            if progress is not None:
                progress(bulk.so_far)
        run(driver, note(self._map(), bulk.words), deadline=self._deadline())
        return bulk.so_far
