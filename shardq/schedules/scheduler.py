"""The scheduler of a dispatcher process: a thread that pushes the occurrences of schedules in time.

It knows the schedules as they were when it last read them: at its start, when the ``news`` say that one changed, and
when messages may have been missed. While there are none it waits, and asks nothing.

Every dispatcher has one. For each schedule they have an order, by the hash of their names with the schedule's: the
first pushes, and the others look a little later, one after the other, whether that was done. Nothing but the number of
requests hangs on that order: whoever comes, an occurrence is pushed once (``pushing_ahead``).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import mmh3
import msgspec

from shardq.calls import schedules
from shardq.drivers.sync import Driver
from shardq.errors import BadInput, EngineClosed, ShardqError
from shardq.model.record import RAW
from shardq.operation import run
from shardq.producer.packing import Packer
from shardq.schedules.entry import Entry, State, decode_entry
from shardq.schedules.planning import DAY_MS, LEAD_MS, plan
from shardq.schedules.pushing_ahead import push_ahead
from shardq.schedules.retracting import retract
from shardq.schedules.timetable import Timetable
from shardq.topology_cache import TopologyCache

log = logging.getLogger("shardq.schedules")

AFTER_ANOTHER_MS = 4000
"""How long a dispatcher waits for the one before it in the order: a dead one is out of the order by then."""

MOST_AFTER_MS = 60_000

RETRACT_AFTER_MS = 2000
"""Who changes a schedule takes back himself what was pushed of it; dispatchers do it when he died."""

CALL_TIMEOUT_S = 2.0
RETRY_S = 1.0

NAP_S = 20.0
"""The longest sleep while there is something to wait for: the server's clock may be set meanwhile. No request is made
after it.
"""

PACE_S = 0.25
"""The least time between two rounds without news: with many schedules, those that come close together are served in
one. All is pushed ahead of its time, so nothing is late.
"""

ROUND = 200
"""Schedules that are served together."""

WHO = "the scheduler"
"""Its name where an outage is logged."""

KEPT_REMOVED_MS = DAY_MS
"""Ids of a removed schedule are remembered, and one of its name that is declared meanwhile has other ids."""


@dataclass(slots=True)
class _Known:
    """A schedule as it was last read or written."""

    entry: Entry
    timetable: Timetable | None
    """None where it can't be computed here."""
    read_s: float
    """The monotonic time of the read or write."""
    work_ms: float = field(init=False)
    """The instant at which there is something to do about it, whoever does it."""

    def __post_init__(self) -> None:
        state = self.entry.state
        if state.retract or state.held:
            self.work_ms = state.changed_ms + RETRACT_AFTER_MS
        elif state.removed:
            self.work_ms = state.changed_ms + KEPT_REMOVED_MS
        elif state.paused or self.timetable is None:
            self.work_ms = math.inf
        elif not state.pushed:
            self.work_ms = state.batch[0] - LEAD_MS
        else:
            self.work_ms = next((at - LEAD_MS for at in self.timetable.after(state.since_ms)), math.inf)


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    pushed: int
    """Occurrences that this process has pushed."""
    problems: tuple[str, ...]


class Scheduler:
    """The scheduler of one process, started once and stopped once. ``clock_ms``: the clock of the control slot's
    master.
    """

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        *,
        process: str,
        members: Callable[[], tuple[str, ...]],
        clock_ms: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._cache = cache
        self._process = process
        self._members = members
        self._clock_ms = clock_ms
        self._packer = Packer(RAW, max_payload=1)  # no payload is packed: records are stored ready made
        self._known: dict[str, _Known] = {}
        self._placed_among: tuple[str, ...] = ()
        self._places: dict[str, int] = {}
        """Name → the place of this process among those members."""
        self._news = threading.Event()
        self._unread = True
        """True when the stored schedules may be others than the known ones."""
        self._stopping = False
        self._pushed = 0
        self._problems: dict[str, str] = {}
        """Name → why its occurrences can't be computed here."""
        self._refused: dict[str, tuple[float, str]] = {}
        """Name → the monotonic time before which it is not tried again, and why its pushes fail."""
        self._failing = ""
        """The reason why the schedules can't be read or written now."""
        self._outage = False
        """True while an outage that was logged holds this up."""
        self.thread = threading.Thread(target=self._run, name="shardq-scheduler", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Tells the thread to end."""
        self._stopping = True
        self._news.set()

    def hear(self, message: str | None) -> None:
        """Takes a message of the ``news``; None: some may have been missed."""
        if message is None or message == schedules.CHANGED:
            self._unread = True
            self._news.set()

    def members_changed(self) -> None:
        if self._known:
            self._news.set()

    def report(self) -> SchedulerReport:
        problems = [
            f"schedule {name!r} can't be computed by this process: {why}" for name, why in self._problems.items()
        ]
        problems += [
            f"schedule {name!r} can't be pushed by this process: {why}"
            for name, (_, why) in dict(self._refused).items()
        ]
        if self._failing:
            problems.append(f"schedules can't be served by this process: {self._failing}")
        return SchedulerReport(self._pushed, tuple(problems))

    def _run(self) -> None:
        wait: float | None = 0.0
        try:
            while not self._stopping:
                self._news.wait(wait)
                self._news.clear()
                if not self._stopping:
                    wait = self._guarded_step()
        finally:
            self._driver.outages.left(WHO)

    def _guarded_step(self) -> float | None:
        try:
            wait = self._step()
        except Exception as exc:
            self._unread = True
            if self._stopping or isinstance(exc, EngineClosed):
                return RETRY_S
            said = self._driver.outages.failed(WHO, exc)
            self._outage |= said
            if not said and not self._failing:
                fields, trace = {"error": type(exc).__name__}, not isinstance(exc, ShardqError)
                log.error("schedules are not served, trying again: %s", exc, exc_info=trace, extra=fields)
            self._failing = str(exc) or type(exc).__name__
            return RETRY_S
        self._failing = ""
        if self._outage and not self._refused:
            self._outage = False
            self._driver.outages.over(WHO)
        return wait

    def _step(self) -> float | None:
        """Does what is to be done now. Returns how long to sleep; None: until there is news."""
        if self._unread:
            self._read()
        now_ms = self._clock_ms()
        due = [name for name in self._known if self._turn_ms(name) <= now_ms][:ROUND]
        if due and any(self._is_stale(name) for name in due):
            # another may have done it meanwhile
            self._read()
            due = [name for name in due if name in self._known and self._turn_ms(name) <= now_ms]
        if due:
            self._serve(due, int(now_ms))
        turn_ms = min(map(self._turn_ms, self._known), default=math.inf)
        if math.isinf(turn_ms):
            return None
        return min(NAP_S, max(PACE_S, (turn_ms - self._clock_ms()) / 1000))

    # ---- whose turn it is, and when

    def _turn_ms(self, name: str) -> float:
        """The instant at which this process is to do something about the schedule, or look at it."""
        turn_ms = self._known[name].work_ms
        if math.isinf(turn_ms):
            return turn_ms
        turn_ms += min(MOST_AFTER_MS, AFTER_ANOTHER_MS * self._place(name))
        if name in self._refused:
            turn_ms = max(turn_ms, self._clock_ms() + (self._refused[name][0] - time.monotonic()) * 1000)
        return turn_ms

    def _place(self, name: str) -> int:
        """The place of this process in the order of the dispatchers for this schedule."""
        members = self._members()
        if members != self._placed_among:
            self._placed_among, self._places = members, {}
        place = self._places.get(name)
        if place is None:
            own = mmh3.hash(f"{self._process}/{name}")
            place = sum(mmh3.hash(f"{other}/{name}") > own for other in members if other != self._process)
            self._places[name] = place
        return place

    def _is_stale(self, name: str) -> bool:
        """True if the schedule must be read before anything is done about it."""
        known = self._known[name]
        if time.monotonic() - known.read_s <= RETRY_S:
            return False
        # a write notices whatever has changed; a push does not
        state = known.entry.state
        writes_first = state.pushed and not (state.retract or state.held)
        return not writes_first or self._place(name) > 0

    # ---- doing it

    def _read(self) -> None:
        """Reads all schedules, and finds out which of them can be computed here."""
        self._unread = False
        read_s = time.monotonic()
        found = self._driver.call(schedules.schedules(self._cache.control), CALL_TIMEOUT_S)
        known: dict[str, _Known] = {}
        problems: dict[str, str] = {}
        for name, (state, declaration) in found.stored.items():
            try:
                entry = decode_entry(name, state, declaration)
            except msgspec.MsgspecError as exc:
                problems[name] = f"it was declared by another version of shardq: {exc}"
                continue
            timetable = None
            if entry.is_listed:
                try:
                    timetable = self._timetable(entry)
                except BadInput as exc:
                    problems[name] = str(exc)
            known[name] = _Known(entry, timetable, read_s)
        for name in problems.keys() - self._problems.keys():
            what = "schedule %r can't be computed here, and is left to other dispatchers: %s"
            log.error(what, name, problems[name], extra={"schedule": name})
        self._known, self._problems, self._places = known, problems, {}
        self._refused = {name: refused for name, refused in self._refused.items() if name in known}

    def _timetable(self, entry: Entry) -> Timetable:
        before = self._known.get(entry.name)
        if before is not None and before.timetable is not None and before.entry.declaration == entry.declaration:
            return before.timetable
        return entry.declaration.timetable()

    def _serve(self, names: list[str], now_ms: int) -> None:
        intended: dict[str, tuple[Entry, State]] = {}
        unpushed: list[Entry] = []
        began_s = time.monotonic()
        for name in names:
            known = self._known[name]
            entry, state = known.entry, known.entry.state
            if state.retract or state.held or state.removed:
                self._clear(entry)
            elif not state.pushed:
                unpushed.append(entry)
            elif known.timetable is not None:
                planned = plan(entry, known.timetable, now_ms)
                if planned.push:
                    intended[name] = entry, entry.intending(planned.push, now_ms)
                else:
                    # what was missed is left out, and that needs no writing
                    known.work_ms = math.inf if planned.again_ms is None else planned.again_ms
        if not intended and not unpushed:
            return
        read_s = min([self._known[entry.name].read_s for entry in unpushed], default=began_s)
        work = push_ahead(self._cache, self._packer, intended, unpushed, read_s=read_s)
        done = run(self._driver, work, CALL_TIMEOUT_S)
        self._pushed += done.count
        for name in (*intended, *(entry.name for entry in unpushed)):
            if name in done.entries:
                self._known[name] = _Known(done.entries[name], self._known[name].timetable, began_s)
            else:
                self._unread = True
            if name in done.errors:
                self._refuse(name, done.errors[name])
            elif self._refused.pop(name, None):
                log.warning("schedule %r is pushed again", name, extra={"schedule": name})

    def _clear(self, entry: Entry) -> None:
        """Takes back what was pushed of a schedule that was changed, by somebody who died then; or removes what is left
        of one that was removed long ago.
        """
        self._unread = True
        try:
            if entry.state.retract or entry.state.held:
                run(self._driver, retract(self._cache, entry), CALL_TIMEOUT_S)
            else:
                call = schedules.set_schedule(self._cache.control, entry.name, seen=entry.stored, state=b"", tell=False)
                self._driver.call(call, CALL_TIMEOUT_S)
        except ShardqError as exc:
            self._refuse(entry.name, exc)

    def _refuse(self, name: str, error: ShardqError) -> None:
        """Notes that something of a schedule was not done. It is tried again, and others are served meanwhile."""
        self._unread = True
        said = self._driver.outages.failed(WHO, error)
        self._outage |= said
        if name not in self._refused and not said:
            fields = {"schedule": name, "error": type(error).__name__}
            log.error("schedule %r can't be pushed, trying again: %s", name, error, extra=fields)
        self._refused[name] = time.monotonic() + RETRY_S, str(error)
