"""Resharding: another number of shards while everything runs.

``resizing`` announces the number and brings it in force; ``migration`` moves the tasks that belong elsewhere then, and
``migrator`` does so in the dispatchers; ``preview`` estimates what would move; ``progress`` says how far it is, and
``handle_aio`` is what the caller waits with.
"""

from shardq.core.resharding.handle_aio import AsyncGrowth
from shardq.core.resharding.handle_sync import Growth
from shardq.core.resharding.migrator import Migrator
from shardq.core.resharding.preview import Flow, Preview
from shardq.core.resharding.progress import Progress

__all__ = ["AsyncGrowth", "Flow", "Growth", "Migrator", "Preview", "Progress"]
