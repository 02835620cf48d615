# Generated from schedule_commands_aio.py by `make fmt`: change that one.
"""The commands on schedules of recurring tasks. ``Engine`` inherits them."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from shardq.engine.base import EngineBase
from shardq.model.checks import check_topic
from shardq.model.record import encode_head, record_encoder
from shardq.model.task import Receipt
from shardq.operation import Operation
from shardq.schedules import declaring
from shardq.schedules.entry import Declaration
from shardq.schedules.every import CatchUp, Every, Schedule, check_schedule_name
from shardq.topology_cache import TopologyCache
from shardq.worker.handlers import Registered, recurring
from shardq.worker.named import call_of

T = TypeVar("T")


class ScheduleCommands(EngineBase, ABC):
    """The commands of ``Engine`` on schedules."""

    @abstractmethod
    def _carry_out(self, make: Callable[[TopologyCache], Operation[T]]) -> T: ...

    def every(
        self,
        name: str,
        *,
        cron: str | None = None,
        interval: float | dt.timedelta | None = None,
        tz: str | None = None,
        topic: str = "",
        payload: Any = None,
        jitter: float | dt.timedelta = 0.0,
        catch_up: CatchUp = "one",
    ) -> None:
        """Pushes a task of ``topic`` with this payload at every occurrence from now on, once over the whole fleet.

        ``cron``: an expression such as "0 3 * * *", by the clock of the time zone ``tz`` (UTC, if none is given); it
        needs ``pip install 'shardq[cron]'``. Or ``interval``: the seconds between two occurrences, 0.1 at least;
        occurrences are its multiples since 1970. ``jitter``: an occurrence is due up to so many seconds later.

        The schedule is kept in the engine, and served by whichever processes have called ``start()``. Declared again,
        by a deploy or by many processes, it stays as it is; with anything changed it takes the place of the other, and
        nothing of that runs any more. It ends with ``remove_schedule``.

        ``catch_up``: after a time in which no dispatcher ran, "one" run makes up for all that were missed, or "all" of
        them run, or "none".

        >>> engine.every("nightly", cron="0 3 * * *", tz="Europe/Berlin", topic="reports", payload={"all": True})
        >>> engine.every("poll", interval=30)
        """
        check_schedule_name(name)
        check_topic(topic)
        every = Every(cron=cron, interval=interval, tz=tz, jitter=jitter, catch_up=catch_up)
        self._declare(name, every, topic, payload, None)

    def _declare(self, name: str, every: Every, topic: str, payload: Any, max_attempts: int | None) -> None:
        head = encode_head(max_attempts=max_attempts)
        record = record_encoder(self.options.codec, limit=self.options.max_payload)(payload, head)
        declaration = Declaration.of(every, topic=topic, record=record)
        self._carry_out(lambda cache: declaring.declare(cache, name, declaration))

    def _declare_recurring(self, functions: Iterable[Registered]) -> None:
        """Declares the schedules of tasks that are to be served: ``@engine.task(every=…)``."""
        for task, every in recurring(functions):
            self._declare(task.name, every, task.topic, call_of(task.name), task.attempts.max_attempts)

    def schedules(self) -> list[Schedule]:
        """Returns all schedules, by name.

        >>> for schedule in engine.schedules():
        ...     print(schedule.name, schedule.cron or schedule.interval, schedule.next, schedule.paused)
        """
        return self._carry_out(lambda cache: declaring.listed(cache, self.options.codec))

    def pause_schedule(self, name: str) -> None:
        """Pushes no more occurrences, and takes back what is pushed and not due yet, until ``resume_schedule``. Raises
        UnknownSchedule.

        >>> engine.every("nightly", interval=86_400)
        >>> engine.pause_schedule("nightly")
        """
        check_schedule_name(name)
        self._carry_out(lambda cache: declaring.pause(cache, name, paused=True))

    def resume_schedule(self, name: str) -> None:
        """Goes on with the next occurrence; none of those during the pause is made up for. Raises UnknownSchedule.

        >>> engine.every("nightly", interval=86_400)
        >>> engine.resume_schedule("nightly")
        """
        check_schedule_name(name)
        self._carry_out(lambda cache: declaring.pause(cache, name, paused=False))

    def remove_schedule(self, name: str) -> bool:
        """Ends a schedule, and takes back what is pushed and not due yet. Returns False if there is none.

        >>> if engine.remove_schedule("nightly"):
        ...     print("it recurs no more")
        """
        check_schedule_name(name)
        return self._carry_out(lambda cache: declaring.remove(cache, name))

    def run_schedule(self, name: str) -> Receipt:
        """Pushes a task of the schedule that is due now, beside its occurrences; also while it is paused. Raises
        UnknownSchedule.

        >>> engine.every("nightly", interval=86_400, topic="reports")
        >>> id = engine.run_schedule("nightly")
        """
        check_schedule_name(name)
        return self._carry_out(lambda cache: declaring.run_now(cache, self._packer, name))
