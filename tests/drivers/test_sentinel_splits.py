"""Under Sentinel, a master that was replaced goes on answering those who reach it. A process that can ask most of the
sentinels leaves it within seconds, also if it meets no fault.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.sentinels import Sentinels
from shardq.errors import Unavailable
from tests.drivers.calls import store
from tests.drivers.carriers import Carrier, Carriers
from tests.support.waiting import wait_until

LEFT_S = 5.0
"""By then a master that the majority has replaced gets nothing more."""

ORDERS = {"first": (0, 1, 2), "in the middle": (1, 0, 2), "last": (1, 2, 0)}
"""The places of sentinel 0 in a URL."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def service(server_binary: Path) -> Iterator[Sentinels]:
    with Sentinels(server_binary, password="pw9", sentinel_password="watch9") as service:
        yield service


def stored_at(service: Sentinels, name: str, field: str) -> list[str]:
    """The sides of a split that have it."""
    return [
        side
        for side, server in (("old", service.master), ("new", service.replica))
        if server.ask("HEXISTS", name, field)
    ]


def left_after_s(service: Sentinels, name: str, users: dict[str, Carrier]) -> dict[str, float]:
    """How long each wrote to the old master after this call began."""
    began, left, number = time.monotonic(), dict[str, float](), 0
    while len(left) < len(users) and time.monotonic() - began < 3 * LEFT_S:
        for who, carrier in users.items():
            number += 1
            carrier.call(store(name, f"{who} {number}"), timeout=2)
            if who not in left and stored_at(service, name, f"{who} {number}") == ["new"]:
                left[who] = time.monotonic() - began
        time.sleep(0.02)
    return left


def test_a_master_that_all_sentinels_have_left(carriers: Carriers, service: Sentinels, name: str) -> None:
    carrier, quiet = carriers.opened(service.url), carriers.opened(service.url)
    service.split()
    service.wait_split()
    left = left_after_s(service, name, {"busy": carrier})
    assert left.get("busy", 99) < LEFT_S, left
    wait_until(lambda: carrier.connections().keys() == {service.replica.address}, "no connection is left there")
    time.sleep(LEFT_S)  # a while in which it does nothing
    quiet.call(store(name, "quiet"), timeout=5)
    assert stored_at(service, name, "quiet") == ["new"]


def test_a_master_with_one_sentinel(carriers: Carriers, service: Sentinels, name: str) -> None:
    users = {place: carriers.opened(service.url_of(order)) for place, order in ORDERS.items()}
    alone = carriers.opened(service.url_of([0]))
    service.split([0])
    service.wait_split([0])
    left = left_after_s(service, name, users)
    assert len(left) == len(users), left
    assert max(left.values()) < LEFT_S, left
    for place, order in ORDERS.items():
        newcomer = carriers.opened(service.url_of(order))
        assert newcomer.nodes() == [service.replica.address], place
    assert service.named_by(0) == service.master.port
    assert alone.nodes() == [service.master.address]


def test_what_ends_the_writes_of_a_minority(carriers: Carriers, server_binary: Path, name: str) -> None:
    """One that reaches the old master and its sentinel alone stays there, where nothing is written any more."""
    strict = {"min-replicas-to-write": "1", "min-replicas-max-lag": "1"}
    with Sentinels(server_binary, password="pw9", sentinel_password="watch9", options=strict) as service:
        alone = carriers.opened(service.url_of([0]))
        alone.call(store(name, "before"))
        service.split([0])
        service.wait_split([0])

        def refused() -> bool:
            try:
                alone.call(store(name, "after"), timeout=0.5)
            except Unavailable as exc:
                return "NOREPLICAS" in str(exc)
            return False

        wait_until(refused, "the old master takes nothing more", timeout=LEFT_S)
        assert alone.nodes() == [service.master.address]
        assert refused()
