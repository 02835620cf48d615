"""The engines: ``Engine`` for threads in ``sync``, ``AsyncEngine`` for asyncio in ``aio``.

Both modules hold what differs: opening, starting, stopping, closing. ``base`` is what both share without waiting. The
commands that are the same but for ``await`` are written once, in ``task_commands_aio`` and ``operator_commands_aio``,
and generated for threads. ``options`` and ``arguments`` check what is given; ``stats`` is what an
engine tells, with ``topic_stats`` and ``rates``; ``health`` judges it, with ``advice`` and ``servers``; ``control``
holds the operations on all shards; ``thread_work`` is what an asyncio engine does in threads;
``connections`` serves what works beside an engine.
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
