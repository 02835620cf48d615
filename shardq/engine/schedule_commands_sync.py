# Generated from schedule_commands_aio.py by `make fmt`: change that one.
"""The commands on schedules of recurring tasks. ``Engine`` inherits them."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from shardq.core.model.checks import check_max_attempts, check_name, check_topic, checked_tags
from shardq.core.model.record import encode_head, record_encoder
from shardq.core.model.task import Receipt
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.engine.base import EngineBase
from shardq.engine.changes import noted
from shardq.errors import InvalidOption
from shardq.features.schedules import declaring
from shardq.features.schedules.entry import Declaration
from shardq.features.schedules.every import CatchUp, Every, Overlap, Schedule, check_schedule_name, schedule_name
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
        start: float | dt.datetime | None = None,
        end: float | dt.datetime | None = None,
        overlap: Overlap = "allow",
        headers: Mapping[str, str] | None = None,
        max_attempts: int | None = None,
        expires: float | dt.timedelta | None = None,
        tags: Sequence[str] | None = None,
        owner: str = "",
    ) -> None:
        """Pushes a task of ``topic`` with this payload at every occurrence from now on, once over the whole fleet.

        ``cron``: an expression such as "0 3 * * *", by the clock of the time zone ``tz`` (UTC, if none is given); it
        needs ``pip install 'shardq[cron]'``. Or ``interval``: the seconds between two occurrences, 0.1 at least;
        occurrences are its multiples since 1970. ``jitter``: an occurrence is due up to so many seconds later.
        ``start`` and ``end``: there are none before and after these instants.

        The schedule is kept in the engine, and served by whichever processes have called ``start()``. Declared again,
        by a deploy or by many processes, it stays as it is; with anything changed it takes the place of the other: what
        is due more than a second later is by the new one, and no occurrence is lost or doubled. It ends with
        ``remove_schedule``, or with ``prune_schedules`` of its ``owner``, a name of the program that declares it.

        ``catch_up``: after a time in which no dispatcher ran, "one" run makes up for all that were missed, or "all" of
        them run, or "none". ``overlap="skip"``: an occurrence is left out while the task of the one before it is still
        scheduled, ready or leased at its time.

        ``headers``, ``max_attempts`` and ``tags`` are those of each task, as with ``push``. ``expires``: a task that
        nobody has begun so many seconds after its due time is buried instead of run late.

        >>> engine.every("nightly", cron="0 3 * * *", tz="Europe/Berlin", topic="reports", payload={"all": True})
        >>> engine.every("poll", interval=30, overlap="skip", expires=30)
        """
        check_schedule_name(name)
        check_topic(topic)
        if max_attempts is not None:
            check_max_attempts(max_attempts)
        every = Every(
            cron=cron,
            interval=interval,
            tz=tz,
            jitter=jitter,
            catch_up=catch_up,
            start=start,
            end=end,
            overlap=overlap,
            headers=headers,
            expires=expires,
            tags=tags,
            owner=owner,
        )
        self._declare(name, every, topic, payload, max_attempts)

    def _declare(self, name: str, every: Every, topic: str, payload: Any, max_attempts: int | None) -> None:
        tags = () if every.tags is None else checked_tags(every.tags)
        head = encode_head(headers=every.headers, max_attempts=max_attempts, tags=tags)
        record = record_encoder(self.options.codec, limit=self.options.max_payload)(payload, head)
        declaration = Declaration.of(every, topic=topic, record=record)
        self._carry_out(lambda cache: declaring.declare(cache, name, declaration))
        if every.owner:
            self._declared.setdefault(every.owner, set()).add(name)

    def _declare_recurring(self, functions: Iterable[Registered]) -> None:
        """Declares the schedules of tasks that are to be served: ``@engine.task(every=…)``."""
        for task, every in recurring(functions):
            payload, max_attempts = call_of(task.name), task.attempts.max_attempts
            self._declare(schedule_name(task.name), every, task.topic, payload, max_attempts)
            for alias in task.aliases:
                self._remove_call(alias)

    def _remove_call(self, task: str) -> None:
        """Removes the schedule of a task by an earlier name of it; one of that name that pushes anything else stays."""
        name, codec = schedule_name(task), self.options.codec
        self._carry_out(lambda cache: declaring.remove_call(cache, codec, name, call_of(task)))

    def prune_schedules(self, owner: str, *, keep: Iterable[str] | None = None) -> list[str]:
        """Removes the schedules that were declared with this ``owner`` but those to ``keep``: the ones that this engine
        object has declared, if nothing is given. Returns the names of those that were removed.

        A program that has declared all of its schedules thereby removes those that an earlier version of it declared.
        Schedules of other owners, and without one, stay.

        >>> engine.every("nightly", interval=86_400, owner="billing")
        >>> engine.prune_schedules("billing")
        []
        """
        check_name(owner, of="owner")
        if keep is None:
            keep = self._declared.get(owner)
            if keep is None:
                raise InvalidOption(
                    f"this engine has declared no schedule with owner={owner!r}, so none would be left; declare them "
                    "first, or give keep=[] to remove them all"
                )
        kept = frozenset(keep)
        return self._carry_out(lambda cache: declaring.prune(cache, owner, kept))

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
        what = f"schedule {name}: paused"
        self._carry_out(lambda cache: noted(cache, declaring.pause(cache, name, paused=True), what))

    def resume_schedule(self, name: str) -> None:
        """Goes on with the next occurrence; none of those during the pause is made up for. Raises UnknownSchedule.

        >>> engine.every("nightly", interval=86_400)
        >>> engine.resume_schedule("nightly")
        """
        check_schedule_name(name)
        what = f"schedule {name}: resumed"
        self._carry_out(lambda cache: noted(cache, declaring.pause(cache, name, paused=False), what))

    def remove_schedule(self, name: str) -> bool:
        """Ends a schedule, and takes back what is pushed and not due yet. Returns False if there is none.

        >>> if engine.remove_schedule("nightly"):
        ...     print("it recurs no more")
        """
        check_schedule_name(name)
        what = f"schedule {name}: removed"
        return self._carry_out(lambda cache: noted(cache, declaring.remove(cache, name), what))

    def run_schedule(self, name: str) -> Receipt:
        """Pushes a task of the schedule that is due now, beside its occurrences; also while it is paused. Raises
        UnknownSchedule.

        >>> engine.every("nightly", interval=86_400, topic="reports")
        >>> id = engine.run_schedule("nightly")
        """
        check_schedule_name(name)
        return self._carry_out(lambda cache: declaring.run_now(cache, self._packer, name))
