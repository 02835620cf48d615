"""Reads all that the screen shows, and remembers the last minutes. Called by ``command``."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardq.engine import Engine, Health, Stats
from shardq.fleet import Lateness, Member
from shardq.listing import Forecast
from shardq.model.task import TaskInfo

POINTS = 120
"""Looks that are remembered, for the sparklines."""

FORECAST_S = 10.0
"""The time between two counts of what falls due: each is some sixty look-ups in every shard."""

DEAD = 200
"""The dead tasks that are read to group their reasons, of those that died last."""


@dataclass(frozen=True, slots=True)
class Look:
    """The engine as it was seen at one time."""

    at: float
    """Monotonic."""
    health: Health
    fleet: Sequence[Member]
    future: Forecast | None
    dead: Sequence[TaskInfo]

    @property
    def stats(self) -> Stats:
        return self.health.stats

    @property
    def dispatch(self) -> dict[str, Lateness]:
        """Dispatcher → its histogram, all topics together."""
        return {each.name: Lateness.total(each.dispatch_lateness.values()) for each in self.fleet}

    @property
    def pickup(self) -> dict[str, Lateness]:
        return {each.name: Lateness.total(each.pickup_lateness.values()) for each in self.fleet}


def recent(before: dict[str, Lateness], now: dict[str, Lateness]) -> Lateness:
    """The lateness of the tasks since an earlier look, of all processes together."""
    return Lateness.total(late.since(before.get(name, Lateness())) for name, late in now.items())


@dataclass(slots=True)
class Course:
    """The last looks, and what they became from one to the next. Used by one thread."""

    look: Look | None = None
    trouble: str = ""
    """Why the last look failed; empty if it did not."""
    dispatched: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    """Tasks in a second."""
    late_ms: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    """The 99th percentile of each interval in which anything was dispatched."""
    late: Lateness = field(default_factory=Lateness)
    """Of the last seconds."""
    picked_up: Lateness = field(default_factory=Lateness)
    handled_per_s: float | None = None
    _looks: deque[Look] = field(default_factory=lambda: deque(maxlen=POINTS))

    def note(self, look: Look, *, over_s: float = 10.0) -> None:
        """Takes the newest look. Lateness is over the last ``over_s``: reports come each second at most."""
        self.look, self.trouble = look, ""
        rates = look.stats.rates
        if rates is not None:
            self.dispatched.append(rates.dispatched)
        before = self._looks[-1] if self._looks else None
        self._looks.append(look)
        if before is None:
            return
        newest = recent(before.dispatch, look.dispatch)
        if newest.count:
            self.late_ms.append(newest.p99_ms or 0)
        base = next((each for each in self._looks if look.at - each.at <= over_s), before)
        self.late = recent(base.dispatch, look.dispatch)
        self.picked_up = recent(base.pickup, look.pickup)
        seconds = look.at - base.at
        done = sum((handled(look) - handled(base)).values())
        self.handled_per_s = done / seconds if seconds > 0 else None


def handled(look: Look) -> Counter[str]:
    """Worker → the tasks that it has handled, whatever came of it."""
    return Counter({each.name: each.handled + each.failed for each in look.fleet})


class Eye:
    """Reads the looks of one engine; counts what falls due less often than the rest. Used by one thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._forecast: tuple[float, Forecast] | None = None

    def look(self) -> Look:
        engine, now = self._engine, time.monotonic()
        health = engine.health()
        if self._forecast is None or now - self._forecast[0] >= FORECAST_S:
            self._forecast = now, engine.forecast("hour")
        dead = engine.tasks(state="dead", limit=DEAD) if health.stats.dead else []
        return Look(now, health, engine.fleet(), self._forecast[1], dead)
