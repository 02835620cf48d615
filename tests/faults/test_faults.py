"""What every way in and out promises, fault by fault: the table in ``guide/guarantees.md``."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import pytest

import shardq
from tests.faults.conftest import WAYS
from tests.faults.way import BAD_ITEMS, FAULTS, OUTAGES, Way
from tests.support.waiting import wait_until

ENDS_S = 8.0
"""Far above the time that an end takes here, and below that of a send without end."""


@pytest.mark.slow
@pytest.mark.faults(*OUTAGES)
def test_an_outage(fault: str, way: Way, caplog: pytest.LogCaptureFixture) -> None:
    """It costs no attempt, is said once, and is in health; when it is over, all arrives."""
    way.prepare(["first", "a", "b", "c"])
    way.put("first")
    wait_until(way.arrived, "the first has arrived")
    caplog.set_level(logging.WARNING, "shardq")
    address = way.breaks(fault)
    try:
        for unique in "abc":
            way.put(unique, max_attempts=1)
        said = wait_until(way.trouble, "health tells it")
        assert address in said
        assert "wrong@" not in said
        assert not way.aside()
    finally:
        way.mends(fault)
    wait_until(lambda: {"a", "b", "c"} <= set(way.arrived()), "all have arrived")
    wait_until(lambda: not way.trouble(), "health is well")
    assert not way.aside()
    assert way.said(caplog.records) == 1, caplog.messages
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.faults("restarted")
def test_a_restart_between_two_items(fault: str, way: Way) -> None:
    way.prepare(["first", "second"])
    way.put("first")
    wait_until(way.arrived, "the first has arrived")
    way.neighbour.kill()
    way.neighbour.start()
    way.put("second", max_attempts=1)
    wait_until(lambda: set(way.arrived()) == {"first", "second"}, "both have arrived")
    assert not way.aside()


@pytest.mark.faults("killed while sending")
def test_a_kill_while_items_are_sent(fault: str, way: Way) -> None:
    uniques = [f"n{number}" for number in range(60)]
    way.prepare(uniques)
    for unique in uniques[:20]:
        way.put(unique, max_attempts=1)
    wait_until(way.arrived, "some have arrived")
    way.neighbour.kill()
    for unique in uniques[20:]:
        way.put(unique, max_attempts=1)
    way.neighbour.start()
    wait_until(lambda: set(way.arrived()) == set(uniques), "all have arrived")
    assert not way.aside()


@pytest.mark.faults(*BAD_ITEMS)
def test_a_bad_item(fault: str, way: Way, caplog: pytest.LogCaptureFixture) -> None:
    """It is put aside with its reason, and counted, and the others arrive meanwhile."""
    caplog.set_level(logging.ERROR, "shardq")
    uniques = [f"n{number}" for number in range(10)]
    way.prepare([f"n{number}" for number in range(200)])
    for unique in uniques[:5]:
        way.put(unique)
    way.put_bad(fault, "bad")
    for unique in uniques[5:]:
        way.put(unique)
    wait_until(lambda: set(uniques) <= set(way.arrived()), "the others have arrived")

    def is_aside() -> bool:
        if f"n{len(uniques) - 1}" in way.arrived() and len(uniques) < 200:
            uniques.append(f"n{len(uniques)}")  # what tells a bad item from a neighbour that is down
            way.put(uniques[-1])
        return "bad" in way.aside()

    wait_until(is_aside, "it is put aside")
    assert way.aside().keys() == {"bad"}
    assert way.aside()["bad"]
    assert "bad" not in way.arrived()
    wait_until(lambda: way.counted() == 1, "it is counted")
    wait_until(lambda: not way.trouble(), "health is well")
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.faults("slow on one item")
def test_a_slow_item(fault: str, way: Way) -> None:
    way.put_bad(fault, "slow")
    for unique in "abc":
        way.put(unique)
    wait_until(lambda: set(way.arrived()) == {"a", "b", "c", "slow"}, "all have arrived")
    assert not way.aside()


@pytest.mark.faults("1 MiB", "odd ids")
def test_odd_items(fault: str, way: Way) -> None:
    """They arrive, or are refused one by one."""
    if fault == "1 MiB":
        uniques = ["x" * 200]
        way.prepare([*uniques, "good"])
        way.put_large(uniques[0], 1_000_000)
    else:
        uniques = ["заказ-7", "a ", "a", "é" * 100]
        way.prepare([*uniques, "good"])
        for unique in uniques:
            way.put(unique)
    way.put("good")
    wait_until(lambda: "good" in way.arrived(), "the other has arrived")
    wait_until(lambda: set(uniques) <= {*way.arrived(), *way.aside()}, "each has arrived, or was refused")
    wait_until(lambda: not way.trouble(), "health is well")


@pytest.mark.faults("frozen")
def test_the_end_while_the_neighbour_is_frozen(fault: str, way: Way) -> None:
    way.prepare(["first", "a"])
    way.put("first")
    wait_until(way.arrived, "the first has arrived")
    way.breaks(fault)
    try:
        way.put("a")
        wait_until(way.trouble, "health tells it")
        began = time.monotonic()
        way.stop()
        assert time.monotonic() - began < ENDS_S
    finally:
        way.mends(fault)


def test_the_table_is_that_of_the_page() -> None:
    """Each row has a test here, and each cell that has none says why."""
    page = (Path(shardq.__file__).parent / "guide/guarantees.md").read_text()
    section = page.partition("## What every way in and out promises")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| \*(.+?)\* \|", section, re.MULTILINE)) == FAULTS
    for way in WAYS:
        assert set(way.not_here) <= set(FAULTS), way.kind
        assert all(len(reason.split()) > 3 for reason in way.not_here.values()), way.kind
