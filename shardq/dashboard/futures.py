"""The past and the future of an engine, as pages of a dashboard show it: each answer serves every page for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from shardq.dashboard.asking import Asker
from shardq.engine.sync import Engine
from shardq.features.history import History
from shardq.features.listing.forecast import Forecast, Horizon

T = TypeVar("T")

FRESH_S = 10.0
"""A forecast is some sixty look-ups in every shard."""

TIMELINE_S = 30.0
"""The overview asks as long as it is open, and a row of the history comes each minute."""


class Futures:
    """The newest answers for each horizon. Used in one event loop."""

    def __init__(self, ask: Asker) -> None:
        self._ask = ask
        self._lock = asyncio.Lock()
        self._found: dict[tuple[str, Horizon], tuple[float, Any]] = {}

    async def newest(self, horizon: Horizon) -> Forecast:
        return await self._kept("forecast", horizon, lambda engine: engine.forecast(horizon), FRESH_S)

    async def timeline(self, horizon: Horizon) -> tuple[History, Forecast]:
        """The history, and the forecast in the same buckets."""
        past = await self._kept("history", horizon, lambda engine: engine.history(horizon), TIMELINE_S)
        future = await self._kept("forecast", horizon, lambda engine: engine.forecast(horizon), TIMELINE_S)
        return past, future

    async def _kept(self, what: str, horizon: Horizon, call: Callable[[Engine], T], fresh_s: float) -> T:
        async with self._lock:
            asked_at, found = self._found.get((what, horizon), (float("-inf"), None))
            if found is None or time.monotonic() - asked_at >= fresh_s:
                found = await self._ask(call)
                self._found[what, horizon] = time.monotonic(), found
            kept: T = found
            return kept
