"""The slot map as a value."""

from __future__ import annotations

from shardq.core.drivers.slot_map import SlotMap, from_cluster_slots

ANSWER = [
    [0, 99, [b"10.0.0.1", 7000, b"id1", []], [b"10.0.0.9", 7000, b"id9", []]],
    [100, 16382, [b"", 7001, b"id2", []]],
    [16383, 16383, [b"10.0.0.1", 7000, b"id1", []]],
]


def test_one_node_serves_all() -> None:
    slots = SlotMap(("a:1",))
    assert {slots.node(slot) for slot in (-1, 0, 16383)} == {"a:1"}


def test_cluster_slots() -> None:
    slots = from_cluster_slots(ANSWER, asked="10.0.0.2:7001")
    assert slots.nodes == ("10.0.0.1:7000", "10.0.0.2:7001")
    assert [slots.node(slot) for slot in (0, 99, 16383)] == ["10.0.0.1:7000"] * 3
    assert [slots.node(slot) for slot in (100, 16382)] == ["10.0.0.2:7001"] * 2


def test_unserved_slots() -> None:
    slots = from_cluster_slots(ANSWER[:1], asked="10.0.0.2:7001")
    assert slots.node(100) is None
    assert "16284 slots unserved" in repr(slots)


def test_a_correction_leaves_the_old_map_as_it_was() -> None:
    slots = from_cluster_slots(ANSWER, asked="10.0.0.2:7001")
    corrected = slots.corrected(5, "10.0.0.3:7002")
    assert corrected.node(5) == "10.0.0.3:7002"
    assert corrected.node(6) == slots.node(5) == "10.0.0.1:7000"
    assert corrected.nodes == (*slots.nodes, "10.0.0.3:7002")
    assert corrected.corrected(6, "10.0.0.3:7002").nodes == corrected.nodes
