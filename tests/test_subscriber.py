"""A subscription counts on the node that owns the slot: the subscriber leaves a master that hangs or was cut off."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.node import Node
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.slots import slot_of
from shardq.core.subscriber import Subscriber
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

DROP_ALL = -2


@pytest.fixture
def cluster(server_binary: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, which fails over when it is told to."""
    with Cluster(server_binary, masters=3, replicas=1, node_timeout_ms=120_000) as cluster:
        yield cluster


@pytest.fixture
def driver(cluster: Cluster) -> Iterator[Driver]:
    driver = Driver(Settings.from_url(cluster.url))
    driver.open()
    yield driver
    driver.close()


@pytest.fixture
def subscriber(driver: Driver) -> Iterator[Subscriber]:
    subscriber = Subscriber(driver)
    yield subscriber
    subscriber.close()


def take_over(cluster: Cluster, victim: Node) -> Node:
    """The replica of a node takes its place, without asking the others; they believe it."""
    (replica,) = [node for node in cluster.replicas if node.group == victim.group]
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    return cluster.wait_promoted(victim)


def listeners(node: Node, channel: str) -> int:
    return int(node.ask("PUBSUB", "SHARDNUMSUB", channel)[1])


def heard_on(subscriber: Subscriber, node: Node, channel: str) -> bool:
    """Whether it is heard; then there is nowhere else that it is rung."""
    if not subscriber.is_subscribed(channel):
        return False
    assert listeners(node, channel) == 1, "what counts as heard would be heard"
    return True


def test_a_new_map_moves_the_subscriptions(cluster: Cluster, driver: Driver, subscriber: Subscriber, name: str) -> None:
    rings: queue.Queue[str | None] = queue.Queue()
    channel, slot = name, slot_of(name)
    victim = cluster.node_of_slot(slot)
    subscriber.subscribe(channel, slot, rings.put)
    wait_until(lambda: subscriber.is_subscribed(channel), "it is heard")
    victim.pause()
    promoted = take_over(cluster, victim)
    driver.refresh(doubted=victim.address)  # somebody has met the failover
    wait_until(lambda: heard_on(subscriber, promoted, channel), "it is heard again")
    promoted.ask("SPUBLISH", channel, "ding")
    wait_until(lambda: "ding" in list(rings.queue), "the ring is heard")
    # told that rings may have been missed: when first heard, and when heard again
    assert list(rings.queue).count(None) >= 2


def test_a_master_that_is_cut_off_is_left(cluster: Cluster, subscriber: Subscriber, name: str) -> None:
    rings: queue.Queue[str | None] = queue.Queue()
    channel, slot = name, slot_of(name)
    victim = cluster.node_of_slot(slot)
    subscriber.subscribe(channel, slot, rings.put)
    wait_until(lambda: subscriber.is_subscribed(channel), "it is heard")
    # it answers us, but knows nothing of what the others have agreed on
    victim.ask("DEBUG", "DROP-CLUSTER-PACKET-FILTER", DROP_ALL)
    (replica,) = [node for node in cluster.replicas if node.group == victim.group]
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    wait_until(lambda: listeners(replica, channel), "it listens where the slot is now")
    wait_until(lambda: subscriber.is_subscribed(channel), "it is heard")
    replica.ask("SPUBLISH", channel, "ding")
    wait_until(lambda: "ding" in list(rings.queue), "the ring is heard")


def test_the_listener_of_a_node_without_slots_ends(cluster: Cluster, subscriber: Subscriber, name: str) -> None:
    slot = slot_of(name)
    victim = cluster.node_of_slot(slot)
    subscriber.subscribe(name, slot, lambda _: None)
    wait_until(lambda: subscriber.is_subscribed(name), "it is heard")
    take_over(cluster, victim)
    wait_until(lambda: "subscribed on 1 nodes" in repr(subscriber), "one connection is enough")


def test_a_slot_that_no_node_serves_is_waited_for(
    server_binary: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    slot = slot_of(name)
    with Cluster(server_binary, masters=2, replicas=0, node_timeout_ms=120_000) as cluster:
        owner = cluster.node_of_slot(slot)
        for node in cluster.nodes:
            node.ask("CLUSTER", "DELSLOTS", slot)
        driver = Driver(Settings.from_url(cluster.url))
        driver.open()
        subscriber = Subscriber(driver)
        assert driver.node_of(slot) == ""
        subscriber.subscribe(name, slot, lambda _: None)
        assert not subscriber.is_subscribed(name)
        owner.ask("CLUSTER", "ADDSLOTS", slot)
        wait_until(lambda: subscriber.is_subscribed(name), "it is heard")
        assert listeners(owner, name) == 1
        subscriber.close()
        driver.close()
    assert not [record for record in caplog.records if record.exc_info]
