"""Each way in and out, with the neighbour of the run, which the test may break; and the cells of the table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster.nats import NatsServer
from cluster.server import Server
from shardq import Engine
from shardq.features.sinks import registry
from tests.faults.amqp import AmqpNeighbour, AmqpWay, CeleryAmqpWay
from tests.faults.neighbours import Endpoint, NatsNeighbour, Neighbour, RedisNeighbour
from tests.faults.queues import CeleryWay, DramatiqWay, RqWay, SidekiqWay
from tests.faults.sinks import HttpWay, NatsWay, Nearby, OwnWay, RedisWay
from tests.faults.stores import FarWay, OutboxWay, PostgresOutboxWay, ScheduleWay, SpoolWay, StoreWay
from tests.faults.way import Way

if TYPE_CHECKING:
    from cluster.postgres import Postgres

WAYS: dict[type[Way], str] = {
    RedisWay: "redis_neighbour",
    HttpWay: "endpoint",
    OwnWay: "nearby",
    AmqpWay: "amqp_neighbour",
    CeleryAmqpWay: "amqp_neighbour",
    RqWay: "redis_neighbour",
    DramatiqWay: "redis_neighbour",
    SidekiqWay: "redis_neighbour",
    CeleryWay: "redis_neighbour",
    NatsWay: "nats_neighbour",
    OutboxWay: "redis_neighbour",
    PostgresOutboxWay: "redis_neighbour",
    SpoolWay: "redis_neighbour",
    ScheduleWay: "redis_neighbour",
    FarWay: "redis_neighbour",
}
"""Each way → the fixture of its neighbour."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each fault that the test names in its mark, and each way that it can happen to."""
    mark = metafunc.definition.get_closest_marker("faults")
    if mark is None:
        return
    cells = [(fault, way) for fault in mark.args for way in WAYS if fault not in way.not_here]
    ids = [f"{way.kind}-{fault.replace(' ', '-')}" for fault, way in cells]
    metafunc.parametrize(("fault", "way"), cells, indirect=["way"], ids=ids)


@pytest.fixture
def way(request: pytest.FixtureRequest, single: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    make: Callable[..., Way] = request.param
    neighbour = request.getfixturevalue(WAYS[request.param])
    for constant, value in request.param.patience.items():
        monkeypatch.setattr(constant, value)
    if issubclass(request.param, StoreWay):
        with contextlib.closing(request.param(neighbour, name, request.getfixturevalue(request.param.store))) as store:
            yield store
        return
    with Engine(single.url, name=name, shards=2, timeout=5.0) as engine:
        yield make(engine, neighbour)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/app.db"


@pytest.fixture
def postgres_url(postgres: Postgres, name: str) -> str:
    return postgres.make_database(name)


@pytest.fixture
def spool_path(tmp_path: Path) -> Path:
    return tmp_path / "mail.spool"


@pytest.fixture(scope="session")
def redis_neighbour(server_binary: Any) -> Iterator[RedisNeighbour]:
    with Server(server_binary, options={"appendonly": "yes", "appendfsync": "no"}) as server:
        yield RedisNeighbour(server)


@pytest.fixture(scope="session")
def nats_neighbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsNeighbour]:
    config = tmp_path_factory.mktemp("nats") / "config"
    config.write_text("authorization { user: ann, password: right }\n")
    with NatsServer(config=config) as server:
        yield NatsNeighbour(server)


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neighbour]:
    neighbour = Endpoint(tmp_path_factory.mktemp("endpoint"))
    with ExitStack() as stack:
        stack.callback(neighbour.kill)
        neighbour.start()
        yield neighbour


@pytest.fixture
def amqp_neighbour() -> Iterator[AmqpNeighbour]:
    neighbour = AmqpNeighbour()
    neighbour.start()
    yield neighbour
    neighbour.kill()


@pytest.fixture
def nearby(monkeypatch: pytest.MonkeyPatch) -> Neighbour:
    point = EntryPoint("own", "tests.faults.sinks:OwnSink", registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == registry.GROUP else [])
    return Nearby()
