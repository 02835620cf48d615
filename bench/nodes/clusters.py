"""Clusters whose processes run on the servers' cores. Called by whatever here needs one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.cores import Cores
from bench.stand import CALM_NODE_TIMEOUT_MS
from cluster.cluster import Cluster


@contextlib.contextmanager
def standing(
    binary: Path, *, masters: int, replicas: int, cores: Cores, node_timeout_ms: int = CALM_NODE_TIMEOUT_MS
) -> Iterator[Cluster]:
    """Starts one, without persistence, and ends it."""
    with contextlib.ExitStack() as stack:
        with cores.for_servers():
            cluster = Cluster(binary, masters=masters, replicas=replicas, node_timeout_ms=node_timeout_ms)
            stack.enter_context(cluster)
        yield cluster
