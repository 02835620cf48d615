"""The schedules as one dispatcher knows them, and what is done about them: ``step``, whose clock is an argument. Called
by ``scheduler``, and by a test's clock.

A step reads each schedule whose turn it is, and serves all of them together, in stages: what was changed is taken back,
occurrences are intended, pushed, and what was held back is cancelled. Each stage ends with the states that say so; a
schedule whose state another process has written meanwhile is left out of the next.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import mmh3

from shardq.core.calls import by_id as calls
from shardq.core.model.task import Outcome
from shardq.core.operation import Operation
from shardq.core.producer import commands_by_id
from shardq.core.topology_cache import TopologyCache
from shardq.errors import BadInput, ShardqError
from shardq.features.schedules import requests
from shardq.features.schedules.entry import Entry, State
from shardq.features.schedules.every import Timetable
from shardq.features.schedules.occurrences import DAY_MS, LEAD_MS, plan
from shardq.features.schedules.pushing_ahead import Found, Written, cancel_held, hold_back, push_ahead, read, write
from shardq.features.schedules.requests import Change

AFTER_ANOTHER_MS = 4000
"""How long a dispatcher waits for the one before it in the order: a dead one is out of the order by then."""

MOST_AFTER_MS = 60_000

RETRACT_AFTER_MS = 2000
"""A process that pauses or removes a schedule takes back what was pushed of it; dispatchers do it if that one died."""

RETRY_MS = 1000

PACE_MS = 250
"""The least time between two steps that push ahead: with many schedules, those that come close together are served in
one. All is pushed ahead of its time, so nothing is late.
"""

ROUND = 500  # schedules that are served together
STEP_S = 1.0  # after so long the rest is left to the next step, whose clock is later

FRESH_S = 30.0
"""The longest time from the look that found an occurrence unpushed to its push. A process that stood still for longer
looks again: by then the occurrence may have run, and its id may be forgotten.
"""

KEPT_REMOVED_MS = DAY_MS
"""Ids of a removed schedule are remembered, and one of its name that is declared meanwhile has other ids."""

_UNFINISHED = (Outcome.SCHEDULED, Outcome.READY, Outcome.RUNNING)


@dataclass(slots=True)
class _Known:
    """A schedule as it was last read or written."""

    entry: Entry
    timetable: Timetable | None  # None where it can't be computed here
    seen_ms: int  # the instant at which it was first seen as it is
    place: int  # the place of this process in the order of the dispatchers for this schedule
    refused_ms: float = -math.inf  # it is not tried again before that
    looks_at_due: bool = False  # true if something is to be done at an instant, and not only before it
    work_ms: float = field(init=False)  # the instant at which there is something to do about it, by any dispatcher

    def __post_init__(self) -> None:
        entry, state = self.entry, self.entry.state
        if not state.is_clear:
            by_others = state.paused or state.removed
            self.work_ms = state.changed_ms + RETRACT_AFTER_MS if by_others else self.seen_ms
        elif state.removed:
            self.work_ms = state.changed_ms + KEPT_REMOVED_MS
        elif state.paused or self.timetable is None:
            self.work_ms = math.inf
        elif not entry.is_renewed:
            self.work_ms = self.seen_ms
        elif not state.is_pushed:
            self.work_ms = state.batch[state.pushed] - LEAD_MS
        else:
            self.work_ms = next((at - LEAD_MS for at in self.timetable.after(state.since_ms)), math.inf)

    @property
    def turn_ms(self) -> float:
        """The instant at which this process is to do something about it, or look at it."""
        return max(self.work_ms + min(MOST_AFTER_MS, AFTER_ANOTHER_MS * self.place), self.refused_ms)


@dataclass(slots=True)
class Step:
    """The result of one step."""

    again_ms: float = math.inf  # the instant of the next one; infinite: when a schedule has changed
    served: set[str] = field(default_factory=set)  # the schedules about which something was done
    errors: dict[str, ShardqError] = field(default_factory=dict)
    """Name → why something could not be done. It is tried again, and others are served meanwhile."""


class KnownSchedules:
    """``process`` and ``members``: the name of this dispatcher, and of all that live."""

    def __init__(
        self, cache: TopologyCache, *, process: str = "", members: Callable[[], tuple[str, ...]] = lambda: ()
    ) -> None:
        self._cache = cache
        self._process = process
        self._members = members
        self._placed_among: tuple[str, ...] = ()
        self._known: dict[str, _Known] = {}
        self._news: deque[str | None] = deque([None])
        """Names of schedules that may be others than the known ones; None: all."""
        self.pushed: int = 0  # occurrences that this process has pushed
        self.problems: dict[str, str] = {}  # name → why its occurrences can't be computed here
        self.unreadable: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._known)

    def hear(self, message: str | None) -> bool:
        """Takes a message of the ``news``, in any thread; None: some may have been missed. Returns True if a schedule
        may have changed.
        """
        if message is None:
            self._news.append(None)
        elif message.startswith(requests.CHANGED):
            self._news.append(message.removeprefix(requests.CHANGED))
        else:
            return False
        return True

    def step(self, now_ms: int) -> Operation[Step]:
        """Does what is to be done now."""
        result = Step()
        heard = {self._news.popleft() for _ in range(len(self._news))}
        if None in heard:
            names = yield requests.schedule_names(self._cache.control)
            for gone in [*self._known.keys() - set(names), *self.unreadable.keys() - set(names)]:
                self._forget(gone)
            heard |= set(names)
        self._find_places()
        due = {name: None for name in heard if name is not None}
        due |= dict.fromkeys(name for name, known in self._known.items() if known.turn_ms <= now_ms)
        names = sorted(due, key=lambda name: self._known[name].turn_ms if name in self._known else -math.inf)
        began_s = time.monotonic()
        while names and time.monotonic() - began_s < STEP_S:
            yield from self._serve(names[:ROUND], now_ms, result)
            del names[:ROUND]
        self._news.extend(names)
        turns = (
            known.turn_ms if known.looks_at_due else max(known.turn_ms, now_ms + PACE_MS)
            for known in self._known.values()
        )
        result.again_ms = min(turns, default=math.inf)
        if self._news:
            result.again_ms = now_ms if names else min(result.again_ms, now_ms + PACE_MS)
        return result

    # ---- what is known

    def _find_places(self) -> None:
        members = self._members()
        if members != self._placed_among:
            self._placed_among = members
            for name, known in self._known.items():
                known.place = self._place(name)

    def _place(self, name: str) -> int:
        own = mmh3.hash(f"{self._process}/{name}")
        return sum(mmh3.hash(f"{other}/{name}") > own for other in self._placed_among if other != self._process)

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self.problems.pop(name, None)
        self.unreadable.pop(name, None)

    def _learn(self, names: list[str], found: Found, now_ms: int) -> None:
        for name in names:
            if name in found.unreadable:
                self._forget(name)
                self.unreadable[name] = found.unreadable[name].problem
            elif name in found.entries:
                self.unreadable.pop(name, None)
                self._know(found.entries[name], now_ms)
            else:
                self._forget(name)

    def _know(self, entry: Entry, now_ms: int) -> None:
        """Knows a schedule as it was read."""
        before = self._known.get(entry.name)
        is_as_before = before is not None and before.entry.is_listed == entry.is_listed
        if before is not None and is_as_before and before.entry.declaration == entry.declaration:
            if before.entry.stored != entry.stored:
                self._known[entry.name] = replace(before, entry=entry, seen_ms=now_ms, looks_at_due=False)
            return
        timetable = None
        self.problems.pop(entry.name, None)
        if entry.is_listed:
            try:
                timetable = entry.declaration.timetable()
            except BadInput as exc:
                self.problems[entry.name] = str(exc)
        self._known[entry.name] = _Known(entry, timetable, now_ms, self._place(entry.name))

    # ---- doing it

    def _serve(self, names: list[str], now_ms: int, result: Step) -> Operation[None]:
        read_s = time.monotonic()
        self._learn(names, (yield from read(self._cache, names)), now_ms)
        served = [known for name in names if (known := self._known.get(name)) and known.turn_ms <= now_ms]
        present = {known.entry.name: known.entry for known in served}
        result.served |= present.keys()

        def note(concerned: Iterator[Entry] | list[Entry], written: Written) -> None:
            for entry in concerned:
                if entry.name in written.entries:
                    present[entry.name] = written.entries[entry.name]
                    self._know(present[entry.name], now_ms)
                else:
                    present.pop(entry.name, None)
                    self._look_again(entry.name, written.errors, now_ms, result)

        yield from self._remove(present, now_ms, result)
        renewed = {
            name: (entry, entry.renewed(now_ms))
            for name, entry in present.items()
            if self._is_served(entry) and entry.state.is_clear and not entry.is_renewed and entry.ahead(now_ms)
        }
        note([entry for entry, _ in renewed.values()], (yield from write(self._cache, renewed)))
        retracting = [entry for entry in present.values() if entry.state.retract]
        note(retracting, (yield from hold_back(self._cache, retracting)))
        intended = yield from self._plan(present, now_ms, result)
        note([entry for entry, _ in intended.values()], (yield from write(self._cache, intended)))
        if time.monotonic() - read_s > FRESH_S:
            return
        unpushed = [entry for entry in present.values() if self._is_served(entry) and not entry.state.is_pushed]
        note(unpushed, (yield from push_ahead(self._cache, unpushed)))
        self.pushed += sum(
            len(entry.state.batch) - entry.state.pushed for entry in unpushed if entry.name not in result.errors
        )
        held = [entry for entry in present.values() if entry.state.held]
        note(held, (yield from cancel_held(self._cache, held)))

    def _is_served(self, entry: Entry) -> bool:
        state = entry.state
        return not (state.paused or state.removed) and self._known[entry.name].timetable is not None

    def _look_again(self, name: str, errors: dict[str, ShardqError], now_ms: int, result: Step) -> None:
        """Notes that a schedule has changed meanwhile, or that something of it was not done."""
        self._news.append(name)
        if name in errors:
            result.errors[name] = errors[name]
            self._known[name].refused_ms = now_ms + RETRY_MS

    def _remove(self, present: dict[str, Entry], now_ms: int, result: Step) -> Operation[None]:
        """Removes what is left of schedules that were removed long ago."""
        removed = [entry for entry in present.values() if entry.state.removed and entry.state.is_clear]
        for entry in removed:
            del present[entry.name]
            change = Change(entry.name, entry.stored, b"")
            epoch = self._cache.topology.stamp
            if (yield requests.set_schedule(self._cache.control, epoch, [change], tell=False))[0]:
                self._forget(entry.name)
            else:
                self._look_again(entry.name, {}, now_ms, result)

    def _plan(self, present: dict[str, Entry], now_ms: int, result: Step) -> Operation[dict[str, tuple[Entry, State]]]:
        """Returns the states that intend occurrences, or leave them out."""
        states: dict[str, tuple[Entry, State]] = {}
        one_by_one: dict[str, tuple[Entry, list[int]]] = {}
        for name, entry in present.items():
            known, timetable = self._known[name], self._known[name].timetable
            if timetable is None or not self._is_served(entry) or not entry.state.is_pushed or entry.state.retract:
                continue
            if not entry.is_renewed:  # nothing of the declaration before is ahead
                entry = replace(entry, state=entry.renewed(now_ms))
            planned = plan(entry, timetable, now_ms)
            if not planned.push:
                # what was missed is left out, and that needs no writing
                known.work_ms = math.inf if planned.again_ms is None else planned.again_ms
                known.looks_at_due = False
            elif entry.declaration.overlap == "skip" and entry.state.last_id:
                one_by_one[name] = entry, planned.push
            else:
                push = planned.push if entry.declaration.overlap == "allow" else planned.push[:1]
                states[name] = entry, entry.intending(push, now_ms)
        if not one_by_one:
            return states
        lasts = {entry.state.last_id: name for name, (entry, _) in one_by_one.items()}
        outcomes = yield from commands_by_id.call_each(self._cache, {id: partial(calls.state, id=id) for id in lasts})
        for id, outcome in outcomes.items():
            entry, push = one_by_one[lasts[id]]
            if isinstance(outcome, ShardqError):
                self._look_again(entry.name, {entry.name: outcome}, now_ms, result)
            elif outcome not in _UNFINISHED:
                states[entry.name] = entry, entry.intending(push[:1], now_ms)
            elif late := [at for at in push if entry.due(at) <= now_ms]:
                states[entry.name] = entry, entry.skipping(late)
            else:
                known = self._known[entry.name]
                known.work_ms, known.looks_at_due = entry.due(push[0]), True
        return states
