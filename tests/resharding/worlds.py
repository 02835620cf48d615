"""Worlds in which a migration is stepped request by request: opening one, and counting a migrator's requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import redis

from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from tests.resharding.stepping import Stepped

W = TypeVar("W")


class World(Protocol):
    def begin(self) -> None: ...

    def migrator(self) -> Stepped: ...

    def step(self, steps: Stepped, times: int) -> None: ...


def opened(make: Callable[[str, str, Driver, redis.Redis], W], url: str, name: str) -> Iterator[W]:
    driver = Driver(Settings.from_url(url))
    driver.open()
    client = redis.Redis.from_url(url, protocol=2)
    yield make(url, name, driver, client)
    client.close()
    driver.close()


def requests_of_one(world: World) -> int:
    """Returns the requests of one migrator, from the first to the last."""
    world.begin()
    alone, requests = world.migrator(), 0
    while not alone.done:
        world.step(alone, 1)
        requests += 1
    assert requests > 15
    return requests
