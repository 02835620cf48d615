"""Resharding: another number of shards while everything runs.

``resizing`` announces the number and brings it in force, says how far a change is and estimates what one would move;
``migration`` moves the tasks that belong elsewhere then, in the thread of ``migrator``; ``handle_aio`` is what the
caller holds.
"""

from shardq.core.resharding.handle_aio import AsyncResize
from shardq.core.resharding.handle_sync import Resize
from shardq.core.resharding.migrator import Migrator
from shardq.core.resharding.resizing import Flow, Progress

__all__ = ["AsyncResize", "Flow", "Migrator", "Progress", "Resize"]
