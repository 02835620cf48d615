"""A master that accepts connections and does not answer, with many callers: one of them dials, and all learn the
outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.cluster import Cluster
from cluster.node import Node
from shardq.core.layout.slots import slot_of
from tests.drivers.calls import command, key_in, store
from tests.drivers.carriers import Carrier, Carriers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CALLERS = 12
LONG_S = 60.0


@pytest.fixture
def cluster(server_binary: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, which fails over when it is told to."""
    with Cluster(server_binary, masters=2, replicas=1, node_timeout_ms=120_000) as cluster:
        yield cluster


@contextmanager
def calling(carrier: Carrier, key: str) -> Iterator[list[Future[Any]]]:
    """As many callers at once, each in a thread, with a call of its own."""
    with ThreadPoolExecutor(CALLERS) as threads:
        yield [threads.submit(carrier.call, store(key, f"f{n}")) for n in range(CALLERS)]


def take_over(cluster: Cluster, victim: Node) -> None:
    """The replica of a node that hangs takes its place, without asking the others."""
    (replica,) = [node for node in cluster.replicas if node.group == victim.group]
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    cluster.wait_promoted(victim)


def connected(node: Node) -> int:
    """How many connections this process has to the node, or is making."""
    ends = [each.raddr for each in psutil.Process().net_connections(kind="tcp") if each.raddr]
    return sum(end.port == node.port for end in ends)


def connects(node: Node) -> int:
    """How many connections it has taken so far."""
    return int(node.ask("INFO", "stats")["total_connections_received"])


def test_one_dials_for_all(carriers: Carriers, cluster: Cluster, name: str) -> None:
    carrier = carriers.opened(cluster.url, connect_timeout=2.0, timeout=LONG_S)
    key = key_in(name, range(8000))
    victim = cluster.node_of_slot(slot_of(key))
    before = connects(victim)
    victim.pause()
    take_over(cluster, victim)
    with calling(carrier, key) as calls:
        assert [call.result() for call in calls] == [1] * CALLERS
    assert carrier.node_of(slot_of(key)) != victim.address
    victim.resume()
    # one, and those of callers that came late; not one for each
    assert connects(victim) - before <= 1 + CALLERS // 3
    assert carrier.call(command(key, "HLEN", key)) == CALLERS


def test_who_waits_for_a_connection_goes_on_with_a_new_map(carriers: Carriers, cluster: Cluster, name: str) -> None:
    carrier = carriers.opened(cluster.url, connect_timeout=LONG_S, timeout=LONG_S * 2)
    key = key_in(name, range(8000))
    victim = cluster.node_of_slot(slot_of(key))
    victim.pause()
    with calling(carrier, key) as calls:
        wait_until(lambda: connected(victim), "one dials")
        take_over(cluster, victim)
        carrier.refresh()
        # nobody can call a thread out of its hand-shake
        free = CALLERS if carriers.kind == "aio" else CALLERS - 1
        wait_until(lambda: sum(call.done() for call in calls) >= free, "the others go on", timeout=LONG_S / 2)
        victim.resume()
        assert [call.result() for call in calls] == [1] * CALLERS


def test_a_caller_waits_no_longer_than_it_may(carriers: Carriers, cluster: Cluster, name: str) -> None:
    carrier = carriers.opened(cluster.url, connect_timeout=LONG_S, timeout=LONG_S * 2)
    key = key_in(name, range(8000))
    victim = cluster.node_of_slot(slot_of(key))
    victim.pause()
    with calling(carrier, key) as calls:
        wait_until(lambda: connected(victim), "one dials")
        with pytest.raises(Exception, match=r"within 0\.2 s: .*not connected"):
            carrier.call(store(key, "f"), timeout=0.2)
        assert not any(call.done() for call in calls)
        victim.resume()
        assert [call.result() for call in calls] == [1] * CALLERS
