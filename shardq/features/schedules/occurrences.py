"""Which occurrences are to be pushed now, and when to look again. Pure: the clock is an argument.

Occurrences are pushed ahead of their time, so that pollers run them to the millisecond and a dispatcher that dies is
replaced before anything is late. One that is due already when it would be pushed was *missed*: ``catch_up`` decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile

from shardq.features.schedules.entry import Entry
from shardq.features.schedules.every import Timetable

LEAD_MS = 10_000
"""An occurrence is pushed so long before its time, at the latest: other dispatchers take over from one that dies within
four seconds, and this leaves them time.
"""

HORIZON_MS = 2 * LEAD_MS
"""Where something is pushed, so is all that follows within this time: short intervals cost one push in ten seconds."""

MOST = 500  # occurrences of one batch. The rest follows at once

GRACE_MS = 1000
"""With ``catch_up="none"``, an occurrence is missed when it is later than this: no dispatcher was there in time."""

BEGUN_MS = 60_000
"""With ``catch_up="none"``, a run that no worker has begun so long after its time is worth nothing any more."""

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

REMEMBERED = 1000  # occurrences whose ids are remembered, about: it takes some 100 bytes for each


@dataclass(frozen=True, slots=True)
class Plan:
    push: list[int]  # the occurrences to push now
    again_ms: int | None  # the instant at which to look again, when there are none; None: never


def plan(entry: Entry, timetable: Timetable, now_ms: int) -> Plan:
    """The next batch of a schedule all of whose occurrences up to ``since_ms`` have been dealt with."""
    catch_up, since_ms = entry.declaration.catch_up, entry.since_ms
    after_ms = since_ms
    if catch_up == "one":
        missed = _last_missed(entry, timetable, now_ms)
        after_ms = since_ms if missed is None else missed - 1
    elif catch_up == "none":
        after_ms = max(since_ms, now_ms - GRACE_MS - entry.declaration.jitter_ms - 1)
    push: list[int] = []
    for occurrence in timetable.after(after_ms):
        if catch_up == "none" and entry.due(occurrence) <= now_ms - GRACE_MS:
            continue
        if not push and occurrence - LEAD_MS > now_ms:
            return Plan([], occurrence - LEAD_MS)
        if occurrence > now_ms + HORIZON_MS or len(push) >= MOST:
            break
        push.append(occurrence)
    return Plan(push, None)


def _last_missed(entry: Entry, timetable: Timetable, now_ms: int) -> int | None:
    """The last of the occurrences that are due already; None if none is."""
    since_ms = entry.since_ms
    first = next(timetable.after(since_ms), None)
    if first is None or entry.due(first) > now_ms:
        return None
    # They may be millions: the last is looked for in longer and longer times before now.
    back_ms = 60_000
    while True:
        start_ms = max(since_ms, now_ms - back_ms)
        past = takewhile(lambda at: at <= now_ms, timetable.after(start_ms))
        missed = [at for at in past if entry.due(at) <= now_ms]
        if missed:
            return missed[-1]
        back_ms *= 30


def next_occurrence(entry: Entry, timetable: Timetable, now_ms: int) -> int | None:
    """The next occurrence after now, pushed already or not; None while the schedule is paused."""
    return None if entry.state.paused else next(timetable.after(now_ms), None)


def dedup_ms(entry: Entry, occurrences: list[int] | tuple[int, ...]) -> int:
    """How long the ids of these are remembered: an hour, and longer where they come seldom."""
    gaps: Iterator[int] = (later - sooner for sooner, later in pairwise((entry.state.last_ms or 0, *occurrences)))
    shortest = min(gaps, default=0)
    return entry.declaration.jitter_ms + max(HOUR_MS, min(30 * DAY_MS, REMEMBERED * shortest))
