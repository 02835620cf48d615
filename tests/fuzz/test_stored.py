"""Good tasks go on beside whatever another program, another version or a failover has left in an engine's keys."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from cluster.server import Server
from shardq.core.layout.topology import Topology, UnreadableTopology
from shardq.core.model.ids import topic_of
from tests.fuzz.nasty import few
from tests.fuzz.planting import plants, topologies, topology_copies
from tests.fuzz.world import World

# pollers draw, too, while examples are made
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Do not use the .random. module")]

REPLACED = "redis.call('DEL', KEYS[1]) return redis.call('HSET', KEYS[1], unpack(ARGV))"


def test_good_tasks_go_on_beside_it(single: Server) -> None:
    @few(16)
    @given(st.data(), st.booleans())
    def go_on(data: st.DataObject, is_running: bool) -> None:
        with World(single) as world:
            if is_running:
                world.start()
            planted = data.draw(plants(world.place))
            world.plant(planted)
            if not is_running:
                world.start()
            world.handles(world.push_good())
            looks = world.looks()
            for what in data.draw(st.lists(st.sampled_from(sorted(looks)), min_size=5, max_size=5, unique=True)):
                note(what)
                looks[what]()
            world.handles(world.push_good())
            world.lives()
            if data.draw(st.integers(0, 7)) == 0:
                world.is_calm()

    go_on()


def test_a_topology(single: Server) -> None:
    """One that can't be read is told, and the present one stays in force; one that can be read is."""

    @few(12)
    @given(st.data())
    def goes_on(data: st.DataObject) -> None:
        with World(single) as world:
            world.start()
            key = world.place.control.topology
            fields = data.draw(topologies(world.do("HGETALL", key)))
            # in one step: a dispatcher that finds no topology between the two restores the one that it knows
            world.do("EVAL", REPLACED, 1, key, *[word for pair in fields.items() for word in pair])
            world.do("SPUBLISH", world.place.control.news, "topology")
            others = changed(fields)
            world.handles(id for id in world.push_good() if topic_of(id) not in others)
            looks = world.looks()
            for what in data.draw(st.lists(st.sampled_from(sorted(looks)), min_size=4, max_size=4, unique=True)):
                note(what)
                try:
                    looks[what]()
                except UnreadableTopology:
                    assert others == {"slow"}
            world.lives()

    goes_on()


def changed(fields: dict[bytes, bytes]) -> set[str]:
    """The topics that go on otherwise, or not at all."""
    try:
        Topology.from_fields(fields)
    except UnreadableTopology:
        return {"slow"}  # no permits are given by limits that are not the newest ones
    return set()


def test_copies_of_the_topology(single: Server) -> None:
    """The stored topology is lost, and the shards have copies of a later one: what can be read of them is restored."""

    @few(8)
    @given(st.data())
    def goes_on(data: st.DataObject) -> None:
        with World(single) as world:
            world.start()
            before = world.engine.topology
            copy = data.draw(topology_copies(msgspec.structs.replace(before, epoch=99)))
            stamp = msgspec.structs.replace(before, epoch=99).stamp
            world.do("HSET", world.place.keys.meta, "epoch", stamp, "topology", copy)
            ids = world.push_good()
            assert world.engine.topology.epoch >= 99
            others = changed(world.do("HGETALL", world.place.control.topology))
            world.handles(id for id in ids if topic_of(id) not in others)
            world.lives()

    goes_on()
