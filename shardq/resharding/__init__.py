"""Resharding: another number of shards while everything runs.

``resizing`` announces the number and brings it in force; ``migration`` moves the tasks that belong elsewhere then, and
``migrator`` does so in the dispatchers; ``preview`` estimates what would move; ``handle`` is what the caller waits
with.
"""

from shardq.resharding.handle import AsyncGrowth, Growth, Progress
from shardq.resharding.migrator import Migrator
from shardq.resharding.preview import Flow, Preview

__all__ = ["AsyncGrowth", "Flow", "Growth", "Migrator", "Preview", "Progress"]
