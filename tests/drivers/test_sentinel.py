"""Sentinels name the master; the driver believes it only when that server says that it is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.sentinels import Sentinels
from shardq.errors import Unavailable
from tests.drivers.calls import store
from tests.drivers.carriers import Carriers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def service(server_binary: Path) -> Iterator[Sentinels]:
    with Sentinels(server_binary, password="pw9", sentinel_password="watch9") as service:
        yield service


def test_a_failover(carriers: Carriers, service: Sentinels, name: str) -> None:
    carrier = carriers.opened(service.url)
    assert carrier.nodes() == [service.master.address]
    carrier.call(store(name, "f"))
    service.sentinels[0].kill()
    service.master.kill()
    carrier.call(store(name, "g"), timeout=100)  # a sentinel that stood still does nothing for 30 s
    assert carrier.nodes() == [service.replica.address]


def test_an_unknown_service(carriers: Carriers, service: Sentinels) -> None:
    carrier = carriers.make(service.url.replace("/main", "/other"), connect_timeout=0.3)

    def failure() -> str:
        with pytest.raises(Unavailable) as caught:
            carrier.open()
        assert "pw9" not in str(caught.value)
        assert "watch9" not in str(caught.value)
        return str(caught.value)

    # asked again because the last word may be that of a sentinel which was held up
    wait_until(lambda: "does not know the service 'other'" in failure(), "a sentinel says so")
