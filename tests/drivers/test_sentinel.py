"""Sentinels name the master; the driver believes it only when that server says that it is one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.sentinels import SERVICE, Sentinels, sentinel_of
from cluster.server import Server
from shardq.core.calls.request import Call
from shardq.errors import InvalidUrl, Unavailable
from tests.drivers.calls import store
from tests.drivers.carriers import Carrier, Carriers
from tests.support import certificates
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


def test_through_tls(carriers: Carriers, tmp_path: Path, name: str) -> None:
    """The sentinels as well as the servers, with a login each."""
    files = certificates.made(tmp_path)
    service = Sentinels(
        certificates.binary(), password="pw9", sentinel_password="watch9", tls=certificates.of_server(files)
    )
    with service:
        url = f"{service.url.replace('redis+', 'rediss+')}&ca={files}/ca.pem&cert={files}/client.pem"
        carrier = carriers.opened(f"{url}&key={files}/client.key")
        assert carrier.call(store(name, "f")) == 1
        assert carrier.nodes() == [service.master.address]
        plain = carriers.make(service.url, connect_timeout=3.0)
        with pytest.raises(InvalidUrl, match=r"its port is for TLS; write rediss\+sentinel:// for redis\+sentinel://"):
            plain.open()


SYSTEM_REDIS = shutil.which("redis-server")


def frozen(service: Sentinels) -> str:
    service.sentinels[0].pause()
    return service.url


def dead(service: Sentinels) -> str:
    service.sentinels[0].kill()
    return service.url


def of_another_version(service: Sentinels) -> str:
    """One that was there before is gone; the one in its place is a Redis 7.0, as the system has it."""
    if SYSTEM_REDIS is None:
        pytest.skip("no redis-server on the PATH, which is the older one")
    old = service.sentinels[0]
    old.stop()
    old.binary = Path(SYSTEM_REDIS)
    old.start()
    return service.url


def hears_nobody(service: Sentinels) -> str:
    """It may reach neither the servers nor the other sentinels, and goes on naming the first master."""
    for server in (service.master, service.replica, *service.sentinels[1:]):
        server.ask("ACL", "SETUSER", "sentinel0", "off")
        server.ask("CLIENT", "KILL", "USER", "sentinel0")
    for number in (1, 2):
        service.sentinels[0].ask("ACL", "SETUSER", f"sentinel{number}", "off")
        service.sentinels[0].ask("CLIENT", "KILL", "USER", f"sentinel{number}")
    return service.url


def may_not_say_the_epoch(service: Sentinels) -> str:
    for sentinel in service.sentinels:
        sentinel.ask("ACL", "SETUSER", "default", "-sentinel|master")
    return service.url


BAD = [frozen, dead, of_another_version, hears_nobody, may_not_say_the_epoch]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
def test_one_that_is_bad(carriers: Carriers, service: Sentinels, name: str, bad: Callable[[Sentinels], str]) -> None:
    """A failover is followed by those that ran, and by a new one; so is a second look without any."""
    url = bad(service)
    carrier, idle = carriers.opened(url, connect_timeout=20.0), carriers.opened(url, connect_timeout=20.0)
    carrier.call(store(name, "f"))
    service.master.kill()
    carrier.call(store(name, "g"), timeout=100)
    assert carrier.nodes() == [service.replica.address]
    began = time.monotonic()
    idle.call(store(name, "h"), timeout=20)
    assert time.monotonic() - began < 5
    assert idle.nodes() == [service.replica.address]
    assert carriers.opened(url, connect_timeout=20.0).nodes() == [service.replica.address]


def test_one_of_another_service(carriers: Carriers, service: Sentinels, server_binary: Path, name: str) -> None:
    """It watches another master under the same name, and after more failovers: the others outvote it."""
    with Server(server_binary, options={"requirepass": "pw9"}) as other:
        liar = sentinel_of(server_binary, other)
        liar.options |= {
            "requirepass": "watch9", f"sentinel config-epoch {SERVICE}": "50", f"sentinel auth-pass {SERVICE}": "pw9",
        }  # fmt: skip
        with liar:
            url = service.url.replace(service.sentinels[0].address, liar.address)
            carrier = carriers.opened(url)
            assert carrier.nodes() == [service.master.address]
            service.master.kill()
            carrier.call(store(name, "f"), timeout=100)
            assert carrier.nodes() == [service.replica.address]
            service.sentinels[1].pause()
            with pytest.raises(Unavailable, match=f"{liar.address} names {other.address}.* knows nothing of"):
                carriers.make(url, connect_timeout=3.0).open()
            carrier.call(store(name, "g"), timeout=100)
            call_for(carrier, store(name, "h"))
            assert carrier.nodes() == [service.replica.address]
            service.sentinels[2].pause()
            call_for(carrier, store(name, "i"))
            assert carrier.nodes() == [service.replica.address]
            assert other.ask("DBSIZE") == 0


def call_for(carrier: Carrier, call: Call[object], seconds: float = 8.0) -> None:
    """Calls for so long that the master is looked for again some times."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        carrier.call(call, timeout=20)
        time.sleep(0.1)
