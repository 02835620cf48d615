"""The forecasts of a dashboard: each is some sixty look-ups in every shard, so one serves every page for a while."""

from __future__ import annotations

import asyncio
import time

from shardq.dashboard.asking import Asker
from shardq.listing.forecast import Forecast, Horizon

FRESH_S = 10.0


class Futures:
    """The newest forecast of each horizon. Used in one event loop."""

    def __init__(self, ask: Asker) -> None:
        self._ask = ask
        self._lock = asyncio.Lock()
        self._found: dict[Horizon, tuple[float, Forecast]] = {}

    async def newest(self, horizon: Horizon) -> Forecast:
        async with self._lock:
            counted_at, found = self._found.get(horizon, (float("-inf"), None))
            if found is None or time.monotonic() - counted_at >= FRESH_S:
                found = await self._ask(lambda engine: engine.forecast(horizon))
                self._found[horizon] = time.monotonic(), found
            return found
