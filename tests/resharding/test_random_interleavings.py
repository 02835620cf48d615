"""Random interleavings of clients, migrators and operators keep every task in one place: see ``interleavings``."""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from cluster.server import Server
from shardq.core.calls import resharding
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.resharding import migration
from tests.resharding.interleavings import Model


@pytest.fixture(autouse=True)
def trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups so small that a few tasks are several, of which each is somewhere else on its way."""
    monkeypatch.setattr(migration, "GROUP", 1)
    monkeypatch.setattr(resharding, "PAGE", 2)


@pytest.mark.timeout(900)
def test_a_changing_number_of_shards(single: Server) -> None:
    driver = Driver(Settings.from_url(single.url))
    driver.open()
    client = redis.Redis.from_url(single.url, protocol=2)
    try:
        run_state_machine_as_test(
            lambda: Model(driver, client),  # type: ignore[arg-type]  # it takes what makes a machine
            settings=settings(
                max_examples=220,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
    finally:
        client.close()
        driver.close()
