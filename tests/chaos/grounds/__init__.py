"""The servers of a run: one with an append-only file, a pair under Sentinel, a cluster with replicas. Clients reach
each of them through a proxy, and so do the servers each other: what is cut off is chosen by the address from which a
server connects.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.grounds.ground import Ground
from tests.chaos.grounds.nodes import Nodes
from tests.chaos.grounds.one import One
from tests.chaos.grounds.pair import Pair

GROUNDS: Mapping[str, type[Ground]] = {each.kind: each for each in (One, Pair, Nodes)}
