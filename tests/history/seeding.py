"""A day of history, stored as dispatchers store it."""

from __future__ import annotations

import time
from collections.abc import Callable

from shardq import Engine
from shardq.engine.access import EngineAccess
from shardq.features.history import LENGTH, MINUTES, Row, State, hour_at, merged, minute_at, requests

PER_MINUTE = 1000
OUTAGE = range(30, 40)
"""Minutes ago in which no dispatcher ran."""
LATE = range(10, 15)
RESIZED = 20
"""Minutes ago at which 16 shards became 32."""


def seed_a_day(engine: Engine, per_minute: Callable[[int], int] = lambda minute: PER_MINUTE, *, ready: int = 7) -> None:
    """``per_minute``: the minute since 1970 → its tasks. ``ready``: the tasks that wait at the end of each."""
    now = int(time.time() // 60)
    rows = [
        Row(
            now - ago,
            1,
            16 if ago > RESIZED else 32,
            0,
            50_000,
            ready,
            per_minute(now - ago),
            per_minute(now - ago) - 10,
            10,
            1,
            7000 if ago in LATE else 3,
        )
        for ago in range(MINUTES - 1, 0, -1)
        if ago not in OUTAGE
    ]
    hours: dict[int, Row] = {}
    for row in rows:
        hour = row.number // 60
        hours[hour] = merged(hours[hour], row) if hour in hours else row._replace(number=hour)
    parts = [(0, State(minute=now - 1, shards={}).packed())]
    parts += [(minute_at(row.number), row.packed()) for row in rows]
    parts += [(hour_at(row.number), row.packed()) for row in hours.values()]
    keys, driver, seen = EngineAccess(engine).cache.control, EngineAccess(engine).open_driver(), b""
    for start in range(0, len(parts), 400):
        assert driver.call(requests.write(keys, 0, seen, parts[start : start + 400], length=LENGTH))
        seen = driver.call(requests.read(keys, 0, 4))
