"""Both drivers follow slots that move and masters that die."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cluster.cluster import Cluster
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.slots import slot_of
from shardq.errors import InvalidUrl, ServerFault, ShardqError, Unavailable
from tests.drivers.calls import TWO_KEYS, command, key_in, keys_of, script_call, store
from tests.drivers.carriers import Carriers
from tests.support.waiting import wait_until

PROMOTED_S = 75.0
"""It takes three, and eight more for each election that a busy machine lets pass."""


@pytest.fixture(scope="module")
def moving(server_binary: object) -> Iterator[Cluster]:
    """Slots are moved on it, but no node is broken."""
    # a node is not taken for dead because the machine was busy
    with Cluster(masters=3, replicas=0, node_timeout_ms=15_000) as cluster:
        yield cluster


@pytest.mark.slow
def test_slots_are_spread(carriers: Carriers, moving: Cluster) -> None:
    carrier = carriers.opened(moving.url)
    assert sorted(carrier.nodes()) == sorted(node.address for node in moving.masters)
    for slot in (0, 5460, 5461, 16383):
        assert carrier.node_of(slot) == moving.node_of_slot(slot).address


def test_groups_of_slots(moving: Cluster) -> None:
    driver = Driver(Settings.from_url(moving.url))
    driver.open()
    groups = driver.slot_groups([16000, 1, 2, 16001])
    assert groups == {driver.node_of(16000): [16000, 16001], driver.node_of(1): [1, 2]}
    driver.close()


def test_one_seed_is_enough(carriers: Carriers, moving: Cluster) -> None:
    seeds = f"redis+cluster://127.0.0.1:1,{moving.nodes[1].address}"
    assert len(carriers.opened(seeds).nodes()) == 3


def test_the_wrong_scheme(carriers: Carriers, moving: Cluster) -> None:
    with pytest.raises(InvalidUrl, match=r"write redis\+cluster://"):
        carriers.make(f"redis://{moving.nodes[0].address}").open()


def test_a_moved_slot_is_followed(carriers: Carriers, moving: Cluster, name: str) -> None:
    carrier = carriers.opened(moving.url)
    key = key_in(name, range(200, 5000))
    assert carrier.call(store(key, "f")) == 1
    target = next(node for node in moving.masters if node is not moving.node_of_slot(slot_of(key)))
    moving.move_slot(slot_of(key), target)
    assert carrier.call(store(key, "f"), timeout=5) == 2
    assert carrier.node_of(slot_of(key)) == target.address


def test_a_slot_on_the_move(carriers: Carriers, moving: Cluster, name: str) -> None:
    carrier = carriers.opened(moving.url)
    here, gone = (f"{key_in(name, range(6000, 9000))}:{part}" for part in "ab")
    slot = slot_of(here)
    carrier.call(command(here, "SET", here, "x"))
    target = next(node for node in moving.masters if node is not moving.node_of_slot(slot))
    move = moving.begin_move(slot, target)
    # A key that is not there is asked for at the target, with the script in full if need be.
    assert carrier.call(store(gone, "f"), timeout=5) == 1
    assert carrier.call(store(gone, "f"), timeout=5) == 2
    assert carrier.node_of(slot) == move.source.address
    # One here, one not: wait until the move is over.
    both = script_call(TWO_KEYS, here, f"{here}:never")

    def failure() -> str:
        try:
            carrier.call(both, timeout=0.2)
        except ServerFault as exc:
            return str(exc)
        return ""

    # asked again because a call that is held up at its end has another error
    wait_until(lambda: "within 0.2 s: TRYAGAIN" in failure(), "a call meets TRYAGAIN")
    finishing = threading.Timer(0.3, move.finish)
    finishing.start()
    assert carrier.call(both) == [b"x", 1]
    finishing.join()
    assert carrier.call(command(gone, "HGET", gone, "f")) == b"2"


def test_slots_move_under_many_calls(carriers: Carriers, moving: Cluster, name: str) -> None:
    carrier = carriers.opened(moving.url)
    keys = [f"{key_in(name, range(start, start + 300))}:{n}" for start in (9000, 15000) for n in range(20)]
    calls = [store(keys[n % len(keys)], f"f{n}") for n in range(4000)]
    slots = {slot_of(key) for key in keys}
    answers = []

    def move_all() -> None:
        for slot in slots:
            target = next(node for node in moving.masters if node is not moving.node_of_slot(slot))
            moving.move_slot(slot, target, batch=1)

    mover = threading.Thread(target=move_all)
    for _, answer in carrier.call_all(enumerate(calls)):
        answers.append(answer)
        if len(answers) == 500:
            mover.start()
    mover.join()
    assert len(answers) == len(calls)
    assert [answer for answer in answers if isinstance(answer, ShardqError)] == []
    assert sum(carrier.call(command(key, "HLEN", key)) for key in keys) == len(calls)


def test_a_master_dies_under_many_calls(carriers: Carriers, own_cluster: Cluster, name: str) -> None:
    carrier = carriers.opened(own_cluster.url, timeout=PROMOTED_S)
    keys = keys_of(name, 12)
    victim = own_cluster.node_of_slot(0)
    answered = 0
    for _, answer in carrier.call_all((n, store(keys[n % 12], f"f{n}")) for n in range(3000)):
        assert not isinstance(answer, ShardqError), answer
        answered += 1
        if answered == 1000:
            victim.kill()
    assert answered == 3000
    own_cluster.wait_promoted(victim, timeout=PROMOTED_S)
    with pytest.raises(Unavailable):
        Driver(Settings.from_url(f"redis://{victim.address}", connect_timeout=0.2)).open()
