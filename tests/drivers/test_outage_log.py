"""A node that fails is logged once, and once when the outage is over, however many calls notice."""

from __future__ import annotations

import logging

import pytest

from shardq.core.drivers.outages import Outages
from shardq.errors import ServerFault, TooManyOpenFiles, Unavailable


def fault(node: str, kind: type[ServerFault] = Unavailable) -> ServerFault:
    exc = kind(f"{node}: no answer")
    exc.node = node
    return exc


def test_it_began_when_the_first_call_was_made(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    exc = fault("a:1")
    exc.tried_s = 7200.0
    outages.failed(1, exc)
    outages.over(1)
    assert " over after 7200." in said(caplog)[-1]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record for record in caplog.records if record.name == "shardq.outages"]
    return [f"{record.levelname} {record.getMessage()}" for record in lines]


def test_many_shards_of_one_node(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    for _ in range(2):
        assert all(outages.failed(shard, fault("a:1")) for shard in range(16))
    assert outages.failed("the heartbeat", fault("a:1"))
    assert said(caplog) == ["ERROR a:1 fails, its shards are not dispatched meanwhile, trying again: a:1: no answer"]
    assert outages.covers(fault("a:1"))
    for who in [*range(16), "the heartbeat"]:
        assert len(said(caplog)) == 1
        outages.over(who)
    (again,) = said(caplog)[1:]
    assert again.startswith("WARNING a:1: the outage is over after ")
    assert again.endswith(" s, 16 shards are dispatched again")
    assert not outages.covers(fault("a:1"))
    outages.over(3)
    assert len(said(caplog)) == 2


def test_each_node_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    outages.failed(1, fault("a:1"))
    outages.failed(2, fault("b:1"))
    outages.failed(1, fault("b:1"))  # looking for its node elsewhere is no other outage
    outages.over(1)
    assert [dedicated.split()[1] for dedicated in said(caplog)] == ["a:1", "b:1", "a:1:"]
    outages.over(2)
    assert len(said(caplog)) == 4


def test_a_process_without_descriptors_is_no_outage_of_its_nodes(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    for shard in range(4):
        assert outages.failed(shard, fault(f"{shard % 2}:1", TooManyOpenFiles))
    assert said(caplog) == [
        "ERROR this process fails, some of its shards are not dispatched meanwhile, trying again: 0:1: no answer"
    ]
    assert outages.covers(fault("0:1", TooManyOpenFiles))
    assert not outages.covers(fault("0:1"))
    for shard in range(4):
        outages.over(shard)
    assert said(caplog)[1].startswith("WARNING this process: the outage is over after ")
    assert len(said(caplog)) == 2


def test_what_is_wrong_with_one_shard_is_not_the_node_s(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    assert not outages.failed(1, fault("a:1", ServerFault))
    assert not outages.failed(1, ValueError("a defect"))
    assert said(caplog) == []
    outages.failed(1, fault("a:1"))
    assert not outages.failed(1, fault("a:1", ServerFault)), "the node answers"
    assert len(said(caplog)) == 2


def test_who_leaves_does_not_recover(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "shardq.outages")
    outages = Outages()
    outages.failed(1, fault("a:1"))
    outages.failed(2, fault("a:1"))
    outages.left(1)
    outages.over(2)
    assert said(caplog)[-1].endswith("1 shard is dispatched again")
    outages.failed(1, fault("a:1"))
    outages.left(1)
    assert len(said(caplog)) == 3
    assert not outages.covers(fault("a:1"))
