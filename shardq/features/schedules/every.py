"""The values of a caller: what is to recur, checked at once, and a schedule as it is listed. And timetables: the
occurrences of a cron expression in a time zone, or of an interval, as instants in epoch ms.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator
from itertools import islice, pairwise, takewhile
from typing import Any, Literal, Protocol, get_args

import mmh3
import msgspec

from shardq.core.model.checks import check_name, check_seconds, duration_ms, instant_ms
from shardq.core.model.printable import quoted
from shardq.core.model.task_options import Content, StoredContent, store_content
from shardq.errors import InvalidName, InvalidOption, MissingPackage

UTC = "UTC"

CatchUp = Literal["one", "all", "none"]
Overlap = Literal["allow", "skip"]

LEAST_INTERVAL_MS = 100  # with the 20 s that are pushed ahead these are 200 tasks a schedule

MOST_INTERVAL_MS = 400 * 86_400_000

MOST_JITTER_S = 86_400.0

_TRIED = 10  # occurrences whose distances bound the jitter


_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
_MS = dt.timedelta(milliseconds=1)


class Timetable(Protocol):
    def after(self, ms: int) -> Iterator[int]:
        """The occurrences after an instant, each later than the one before; without end, or until there are none."""


class IntervalTimetable:
    """The multiples of an interval since 1970: the same in every process, whenever it starts."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms

    def after(self, ms: int) -> Iterator[int]:
        at = ms // self._interval_ms * self._interval_ms
        while True:
            at += self._interval_ms
            yield at


class CronTimetable:
    """A cron expression in a time zone, as Debian's cron reads it: a job at a local time that does not exist runs when
    the clock has gone ahead, one at a time that comes twice runs once, at the first; jobs of every hour or minute run
    as often as there are such hours and minutes.
    """

    def __init__(self, cron: str, tz: str) -> None:
        try:
            from cronsim import CronSim, CronSimError
        except ModuleNotFoundError as exc:
            if exc.name != "cronsim":
                raise
            raise MissingPackage("cron= needs cronsim: pip install 'shardq[cron]', or give interval= instead") from exc
        self._cron = cron
        self._zone = _zone(tz)
        self._iterate = CronSim
        try:
            CronSim(cron, _EPOCH)
        except CronSimError as exc:
            raise InvalidOption(
                f"cron can't be {quoted(cron)}: {exc}; write minute, hour, day of month, month and day of week, "
                "such as '0 3 * * *', with the second before them where one is needed"
            ) from exc

    def after(self, ms: int) -> Iterator[int]:
        last = ms
        for when in self._iterate(self._cron, (_EPOCH + ms * _MS).astimezone(self._zone)):
            at = (when - _EPOCH) // _MS
            # in an hour that comes twice it begins with the first
            if at > last:
                yield at
                last = at


class BoundedTimetable:
    """The occurrences of another timetable from a first instant on, up to a last one."""

    def __init__(self, timetable: Timetable, start_ms: int | None, end_ms: int | None) -> None:
        self._timetable = timetable
        self._before_ms = -math.inf if start_ms is None else start_ms - 1
        self._end_ms = math.inf if end_ms is None else end_ms

    def after(self, ms: int) -> Iterator[int]:
        return takewhile(lambda at: at <= self._end_ms, self._timetable.after(int(max(ms, self._before_ms))))


def timetable(
    cron: str | None, interval_ms: int | None, tz: str, *, start_ms: int | None = None, end_ms: int | None = None
) -> Timetable:
    """Raises InvalidOption where it can't be computed here."""
    found: Timetable
    if cron is None:
        assert interval_ms is not None, "a declaration has one of both"
        found = IntervalTimetable(interval_ms)
    else:
        found = CronTimetable(cron, tz)
    return found if start_ms is None and end_ms is None else BoundedTimetable(found, start_ms, end_ms)


def _zone(tz: str) -> dt.tzinfo:
    if tz == UTC:
        return dt.UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(tz)
    # of a name with blanks, one that is a folder, or one that leads out of the database
    except (KeyError, ValueError, OSError) as exc:
        raise InvalidOption(
            f"tz can't be {quoted(tz)}: it is not in the time zones of this machine; give a name such as "
            "'Europe/Berlin', and if that is missing: pip install 'shardq[cron]', which brings all of them"
        ) from exc


class Every(Content, frozen=True):
    """The recurrence of a task, for ``@engine.task(every=…)``, with all that ``engine.every`` takes about it, and the
    options of the content of each task (``headers``, ``tags``, …). A cron expression alone, or seconds alone, need no
    ``Every``.

    >>> @engine.task(every=shardq.Every("0 3 * * *", tz="Europe/Berlin", catch_up="none"))
    ... def clean_up() -> None: ...
    """

    cron: str | None = None
    interval: float | dt.timedelta | None = None
    tz: str | None = None
    jitter: float | dt.timedelta = 0.0
    catch_up: CatchUp = "one"
    start: float | dt.datetime | None = None
    end: float | dt.datetime | None = None
    overlap: Overlap = "allow"
    expires: float | dt.timedelta | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.interval is None):
            raise InvalidOption(
                "a schedule needs a cron expression or an interval, and not both: cron='0 3 * * *' or interval=300"
            )
        if self.cron is not None and not isinstance(self.cron, str):
            raise InvalidOption(f"cron can't be {quoted(self.cron)}; give a str such as '0 3 * * *'")
        if self.tz is not None and (self.cron is None or not isinstance(self.tz, str)):
            raise InvalidOption(
                f"tz can't be {quoted(self.tz)} here; give a name such as 'Europe/Berlin' together with cron=: an "
                "interval is the same everywhere"
            )
        if self.catch_up not in get_args(CatchUp):
            raise InvalidOption(
                f"catch_up can't be {quoted(self.catch_up)}; use 'one' (one run for all that were missed), 'all' or "
                "'none'"
            )
        if self.overlap not in get_args(Overlap):
            raise InvalidOption(
                f"overlap can't be {quoted(self.overlap)}; use 'allow', or 'skip' to leave an occurrence out while the "
                "one before it is not finished"
            )
        store_content(self, StoredContent())
        if self.owner != "":
            check_name(self.owner, of="owner")
        _ = self.expires_ms
        every = timetable(self.cron, self.interval_ms, self.zone).after(0)
        found = list(islice(every, _TRIED if self.jitter_ms else 1))
        if not found:
            raise InvalidOption(f"cron can't be {quoted(self.cron)}: there is no such day")
        bounded = timetable(self.cron, self.interval_ms, self.zone, start_ms=self.start_ms, end_ms=self.end_ms)
        if next(bounded.after(0), None) is None:
            raise InvalidOption(
                f"there is no occurrence from start={quoted(self.start)} to end={quoted(self.end)}; give another "
                "start or end"
            )
        shortest_ms = min((later - sooner for sooner, later in pairwise(found)), default=self.jitter_ms)
        if self.jitter_ms > shortest_ms:
            raise InvalidOption(
                f"jitter can't be {quoted(self.jitter)}: it is at most the time between two occurrences, which is "
                f"{shortest_ms / 1000:g} s; or two would change places"
            )

    @classmethod
    def of(cls, every: Every | str | float | dt.timedelta) -> Every:
        """A cron expression, an interval in seconds, or an ``Every`` as it is."""
        if isinstance(every, Every):
            return every
        if isinstance(every, str):
            return cls(cron=every)
        if isinstance(every, int | float | dt.timedelta) and not isinstance(every, bool):
            return cls(interval=every)
        raise InvalidOption(
            f"every={quoted(every)} is not possible; give a cron expression, seconds, a timedelta, or shardq.Every(…)"
        )

    @property
    def zone(self) -> str:
        return self.tz or UTC

    @property
    def interval_ms(self) -> int | None:
        if self.interval is None:
            return None
        ms = duration_ms(self.interval, "interval")
        if not LEAST_INTERVAL_MS <= ms <= MOST_INTERVAL_MS:
            raise InvalidOption(
                f"interval can't be {quoted(self.interval)}; it is from {LEAST_INTERVAL_MS / 1000:g} s to 400 days"
            )
        return ms

    @property
    def jitter_ms(self) -> int:
        jitter = self.jitter.total_seconds() if isinstance(self.jitter, dt.timedelta) else self.jitter
        check_seconds(jitter, "jitter", most=MOST_JITTER_S)
        return int(jitter * 1000)

    @property
    def start_ms(self) -> int | None:
        return None if self.start is None else instant_ms(self.start, "start")

    @property
    def end_ms(self) -> int | None:
        return None if self.end is None else instant_ms(self.end, "end")

    @property
    def expires_ms(self) -> int | None:
        return None if self.expires is None else duration_ms(self.expires, "expires")


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as ``engine.schedules()`` lists it.

    >>> for schedule in engine.schedules():
    ...     print(schedule.name, schedule.cron or schedule.interval, schedule.next, schedule.paused)
    """

    name: str
    cron: str | None = None
    interval: float | None = None
    """Seconds."""
    tz: str = UTC
    topic: str = ""
    key: str | None = None
    payload: Any = None
    """None where it can't be decoded."""
    jitter: float = 0.0
    catch_up: CatchUp = "one"
    start: dt.datetime | None = None
    end: dt.datetime | None = None
    overlap: Overlap = "allow"
    owner: str = ""
    paused: bool = False
    next: dt.datetime | None = None
    """The next occurrence; None while it is paused, after its end, and where this process can't compute it."""
    last: dt.datetime | None = None
    """The last occurrence that was pushed and is due; None before the first."""
    skipped: int = 0
    """Occurrences that were left out because the one before was not finished: ``overlap="skip"``."""
    problem: str | None = None
    """The reason why this process can't compute its occurrences, or can't read it at all, and knows nothing else."""


def check_schedule_name(name: str) -> None:
    check_name(name, of="schedule")


def schedule_name(task: str) -> str:
    """The name of the schedule of a recurring task: the task's own where a schedule can have it."""
    try:
        check_schedule_name(task)
    except InvalidName:
        return f"{_NOT_IN_NAME.sub('-', task)[:_MOST_OF_TASK]}-{mmh3.hash(task, signed=False):08x}"
    return task


_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_MOST_OF_TASK = 50
