"""The engines: what a program holds in its hands. ``sync`` for threads, ``aio`` for asyncio, side by side.

``options`` checks what they are made with and finds the server, ``stats`` is what they tell, ``control`` the operations
on the whole topology.
"""

from shardq.engine.aio import AsyncEngine
from shardq.engine.stats import ShardStats, Stats
from shardq.engine.sync import Engine

__all__ = ["AsyncEngine", "Engine", "ShardStats", "Stats"]
