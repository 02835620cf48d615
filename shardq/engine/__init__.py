"""The engines: ``Engine`` for threads and ``AsyncEngine`` for asyncio.

Both are written once, for asyncio, and generated for threads; what differs stands in sections beside what agrees.
``aio`` opens, starts, stops and closes the engine; ``tasks_aio`` has the commands on tasks, ``operator_aio`` those on
the whole engine and on schedules. ``base`` is what both share without waiting. ``options`` and ``arguments`` check what
is given; ``stats`` is what an engine tells, with ``topic_stats`` and ``rates``; ``health`` judges it, with ``advice``
and ``servers``; ``control`` holds the operations on all shards; ``connections`` serves what works beside an engine.
"""

from typing import TYPE_CHECKING

from shardq.core.lazy import lazily
from shardq.engine.health import Health
from shardq.engine.rates import Rates
from shardq.engine.stats import ShardStats, Stats
from shardq.engine.sync import Engine
from shardq.engine.topic_stats import TopicStats

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine
else:
    __getattr__, __dir__ = lazily(__name__, {"AsyncEngine": "shardq.engine.aio"})

__all__ = ["AsyncEngine", "Engine", "Health", "Rates", "ShardStats", "Stats", "TopicStats"]
