"""``service`` runs a test under Sentinel and on a cluster: each master has a replica, and one master may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from cluster.cluster import Cluster
from cluster.sentinels import Sentinels
from cluster.server import Server


class Service(Protocol):
    """Servers, one of which can be lost."""

    @property
    def url(self) -> str: ...

    def pair(self, slot: int) -> tuple[Server, Server]:
        """Returns the master of a slot, and its replica."""
        ...


class _OfSentinels:
    def __init__(self, sentinels: Sentinels) -> None:
        self.url = sentinels.url
        self._sentinels = sentinels

    def pair(self, slot: int) -> tuple[Server, Server]:
        return self._sentinels.master, self._sentinels.replica


class _OfCluster:
    def __init__(self, cluster: Cluster) -> None:
        self.url = cluster.url
        self._cluster = cluster

    def pair(self, slot: int) -> tuple[Server, Server]:
        master = self._cluster.node_of_slot(slot)
        (replica,) = self._cluster.replicas_of(master)
        return master, replica


@pytest.fixture(params=["sentinel", "cluster"])
def service(request: pytest.FixtureRequest, server_binary: Path) -> Iterator[Service]:
    if request.param == "sentinel":
        with Sentinels(server_binary) as sentinels:
            yield _OfSentinels(sentinels)
    else:
        with Cluster(server_binary, masters=3, replicas=1) as cluster:
            yield _OfCluster(cluster)
