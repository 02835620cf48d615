"""Reads all that the screen shows. Called by ``command``."""

from __future__ import annotations

import time

from shardq.engine import Engine
from shardq.engine.course import Look
from shardq.history import History
from shardq.listing import Forecast

FORECAST_S = 10.0
"""The time between two counts of what falls due: each is some sixty look-ups in every shard."""

DEAD = 200
"""The dead tasks that are read to group their reasons, of those that died last."""


class Eye:
    """Reads the looks of one engine; counts what falls due less often than the rest. Used by one thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._timeline: tuple[float, History, Forecast] | None = None

    def look(self) -> Look:
        engine, now = self._engine, time.monotonic()
        health = engine.health()
        if health.stats.missing:
            # both ask every shard, and fail with one
            return Look(now, health)
        if self._timeline is None or now - self._timeline[0] >= FORECAST_S:
            self._timeline = now, engine.history("hour"), engine.forecast("hour")
        dead = engine.tasks(state="dead", newest=True, limit=DEAD) if health.stats.dead else []
        _, past, future = self._timeline
        return Look(now, health, past, future, dead)
