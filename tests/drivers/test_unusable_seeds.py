"""Of several sentinels, or seeds of a cluster, the first that answers well is used, and the others are passed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.sentinels import SERVICE, sentinel_of
from cluster.server import Server
from shardq.errors import AccessDenied, ServerFault, Unavailable
from tests.drivers.calls import store
from tests.drivers.carriers import Carriers
from tests.drivers.refusals import told_at_once
from tests.support.waiting import wait_until

GOOD, BAD = "watch9", "other9"


@pytest.fixture(scope="module")
def master(server_binary: Path) -> Iterator[Server]:
    with Server(server_binary) as server:
        yield server


def sentinel(binary: Path, master: Server, password: str) -> Server:
    made = sentinel_of(binary, master)
    made.options["requirepass"] = password
    return made


@pytest.fixture(scope="module")
def good(server_binary: Path, master: Server) -> Iterator[Server]:
    with sentinel(server_binary, master, GOOD) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(server_binary: Path, master: Server) -> Iterator[Server]:
    """A sentinel of another password."""
    with sentinel(server_binary, master, BAD) as server:
        yield server


@pytest.fixture(scope="module")
def hanging(server_binary: Path, master: Server) -> Iterator[Server]:
    """A sentinel that takes connections and says nothing."""
    with sentinel(server_binary, master, GOOD) as server:
        server.pause()
        yield server


def url(*sentinels: Server) -> str:
    return f"redis+sentinel://{','.join(each.address for each in sentinels)}/{SERVICE}?sentinel_password={GOOD}"


@pytest.fixture(scope="module")
def gone(server_binary: Path) -> Iterator[Server]:
    """Nobody listens there."""
    server = Server(server_binary)
    yield server
    server.close()


@pytest.fixture(params=["guarded", "master", "hanging", "gone"])
def bad(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


def test_a_bad_one_before_a_good_one(carriers: Carriers, bad: Server, good: Server, master: Server, name: str) -> None:
    carrier = carriers.opened(url(bad, good), connect_timeout=60.0)
    assert carrier.nodes() == [master.address]
    assert carrier.call(store(name, "f")) == 1


def test_all_that_are_bad_are_named(carriers: Carriers, guarded: Server, master: Server) -> None:
    told = told_at_once(carriers, url(guarded, master), AccessDenied)
    assert f"{guarded.address}: it does not accept the password" in told
    assert "sentinel_password=" in told
    assert f"{master.address}: it is not a sentinel" in told
    assert GOOD not in told


@pytest.mark.slow
def test_the_first_fault_that_waiting_cannot_mend_names_the_error(
    carriers: Carriers, guarded: Server, hanging: Server
) -> None:
    carrier = carriers.make(url(hanging, guarded), connect_timeout=0.2)

    def told() -> str:
        with pytest.raises(ServerFault) as caught:
            carrier.open()
        return str(caught.value) if type(caught.value) is AccessDenied else ""

    # asked again: the one that answers may be held up, too
    text = wait_until(told, "the one that answers has refused")
    assert f"{hanging.address}: no answer for" in text
    assert f"{guarded.address}: it does not accept the password" in text


@pytest.mark.slow
def test_one_that_hangs_is_waited_for(carriers: Carriers, hanging: Server) -> None:
    carrier = carriers.make(url(hanging), connect_timeout=0.2)
    with pytest.raises(Unavailable, match=rf"within 0\.2 s: {hanging.address}: no answer for"):
        carrier.open()


@pytest.mark.parametrize("order", [1, -1])
def test_a_seed_that_is_no_node(carriers: Carriers, cluster: Cluster, master: Server, name: str, order: int) -> None:
    seeds = [master.address, cluster.url.partition("://")[2]]
    carrier = carriers.opened(f"redis+cluster://{','.join(seeds[::order])}", connect_timeout=60.0)
    assert carrier.call(store(name, "f")) == 1
