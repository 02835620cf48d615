"""The engines: what a program holds in its hands. ``sync`` for threads, ``aio`` for asyncio, side by side.

``options`` checks what they are made with and finds the server, ``stats`` is what they tell, ``control`` the operations
on the whole topology.
"""

from typing import TYPE_CHECKING

from shardq.engine.stats import ShardStats, Stats
from shardq.engine.sync import Engine
from shardq.lazy import lazily

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine
else:
    __getattr__, __dir__ = lazily(__name__, {"AsyncEngine": "shardq.engine.aio"})

__all__ = ["AsyncEngine", "Engine", "ShardStats", "Stats"]
