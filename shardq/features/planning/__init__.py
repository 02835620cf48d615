"""The size of a cluster for a load, by the costs that the benches measured."""

from shardq.features.planning.plan import Costs, Load, NotPossible, Plan, measured, plan

__all__ = ["Costs", "Load", "NotPossible", "Plan", "measured", "plan"]
