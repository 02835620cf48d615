"""Sizes a cluster for a load, by the costs that the benches measured. Called by ``shardq plan``. Nothing here does I/O
but for reading ``costs.json``, which ``make report`` writes.
"""

from shardq.features.planning.costs import Costs, measured
from shardq.features.planning.plan import Load, NotPossible, Plan, plan

__all__ = ["Costs", "Load", "NotPossible", "Plan", "measured", "plan"]
