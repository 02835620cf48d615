"""Another number of shards while everything runs.

``operations`` announces it and brings it in force; ``moves`` moves the tasks that belong elsewhere then, ``mover`` does
so in the dispatchers; ``handle`` is what the caller waits with.
"""

from shardq.growth.handle import AsyncGrowth, Growth, Progress
from shardq.growth.mover import Mover
from shardq.growth.preview import Flow, Preview

__all__ = ["AsyncGrowth", "Flow", "Growth", "Mover", "Preview", "Progress"]
