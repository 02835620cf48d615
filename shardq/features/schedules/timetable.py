"""Timetables: the occurrences of a cron expression in a time zone, or of an interval. Pure.

An occurrence is an instant in epoch ms. ``cronsim`` reads cron expressions and knows what becomes of local times that
do not exist, or come twice; it is loaded at its first use.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from itertools import takewhile
from typing import Protocol

from shardq.errors import InvalidOption, MissingPackage

UTC = "UTC"

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
_MS = dt.timedelta(milliseconds=1)

MISSING = "cron= needs cronsim: pip install 'shardq[cron]', or give interval= instead"


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
            raise MissingPackage(MISSING) from exc
        self._cron = cron
        self._zone = _zone(tz)
        self._iterate = CronSim
        try:
            CronSim(cron, _EPOCH)
        except CronSimError as exc:
            raise InvalidOption(
                f"cron can't be {cron!r:.80}: {exc}; write minute, hour, day of month, month and day of week, "
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
            f"tz can't be {tz!r:.80}: it is not in the time zones of this machine; give a name such as "
            "'Europe/Berlin', and if that is missing: pip install 'shardq[cron]', which brings all of them"
        ) from exc
