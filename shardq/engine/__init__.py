"""The engines: ``Engine`` for threads and ``AsyncEngine`` for asyncio.

Both are written once, for asyncio, and generated for threads; what differs stands in sections beside what agrees.
``aio`` opens, starts, stops and closes the engine; ``tasks_aio`` has the commands on tasks, ``operator_aio`` those on
the whole engine and on schedules. ``base`` is what both share without waiting, ``wiring`` makes its drivers and its
dispatcher, and knows what runs in this process. What is around the engine imports ``around``, and no other file here.
``options`` checks what is given; ``engine_wide`` holds the operations on all shards; ``stats`` is what an engine tells;
``findings`` is the table of all that can be wrong, ``health``, ``servers``, ``deaf`` and ``doctor`` look for it.
``snapshot`` and ``tables`` serve what shows an engine.
"""

from typing import TYPE_CHECKING

from shardq.core.lazy import lazily
from shardq.engine.engine_wide import Change, Rates
from shardq.engine.findings import Finding
from shardq.engine.health import Health
from shardq.engine.stats import ShardStats, Stats, TopicStats
from shardq.engine.sync import Engine
from shardq.engine.topic_keys import KeyList, KeyStats

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine
else:
    __getattr__, __dir__ = lazily(__name__, {"AsyncEngine": "shardq.engine.aio"})

__all__ = [
    "AsyncEngine",
    "Change",
    "Engine",
    "Finding",
    "Health",
    "KeyList",
    "KeyStats",
    "Rates",
    "ShardStats",
    "Stats",
    "TopicStats",
]
