"""``shard``: an open shard of an engine of its own; ``keys`` are its names.

A script is the same on one server and on a cluster, but for the slots of its keys: ``test_contracts`` runs each of them
on both, and so do the engines' tests. The tables here are for one server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ControlKeys, ShardKeys, control_keys, shard_keys
from tests.lua.modelled import ModelledShard
from tests.lua.shard import Shard, T, meta
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.server import Server as Model


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1)


@pytest.fixture
def control(name: str) -> ControlKeys:
    return control_keys(name)


@pytest.fixture(scope="session", params=["single"])
def url(request: pytest.FixtureRequest, server_binary: Path) -> str:
    """The URL of a server; also that of a cluster where the test says ``ON_BOTH``."""
    server: Server | Cluster = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture
def driver(url: str) -> Iterator[Driver]:
    # RESP2, where all answers are plain lists
    driver = Driver(Settings.from_url(url, protocol=2))
    driver.open()
    yield driver
    driver.close()


@pytest.fixture
def shard(driver: Driver, keys: ShardKeys) -> Iterator[Shard]:
    """An open, empty shard; its keys are removed after the test."""
    shard = Shard(driver, keys)
    shard.seed({"meta": meta()})
    yield shard
    shard.clear()


@pytest.fixture(scope="session")
def model() -> Model:
    """A server of the model, which has loaded the scripts that were run on it."""
    return Model(Keyspace(lambda: T * 1000))


@pytest.fixture
def modelled(model: Model, keys: ShardKeys) -> Iterator[ModelledShard]:
    """A shard on the model."""
    shard = ModelledShard(model, keys)
    yield shard
    shard.clear()


@pytest.fixture
def centre(driver: Driver, control: ControlKeys) -> Iterator[Shard]:
    """The control keys, as a ``Shard``."""
    centre = Shard(driver, control)
    yield centre
    centre.clear()
