"""The table of findings: for each row a fault on a real server that brings it, and that it goes again; and what is told
of what was found.
"""

from __future__ import annotations

import datetime as dt
import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.core.operation import run
from shardq.engine.access import EngineAccess
from shardq.engine.doctor import OK, Wrong, find_all
from shardq.engine.findings import EXAMPLES, SEVERITIES, TABLE, Finding, FirstSeen, found, in_order
from shardq.engine.wiring import connected
from tests.engine.faults import FAULTS, ON_TUNED, SEEN_S, Fault, Looked
from tests.support.pages import PACKAGE
from tests.support.waiting import wait_until
from tests.support.worlds import World

ELSEWHERE: Mapping[str, str] = {
    "lost_slots": "failover.test_a_lost_range",
    "failed_node": "engine.test_health::test_a_node_that_was_killed",
    "unserved_slots": "engine.test_advice_on_server_settings::test_slots_that_nobody_serves",
    "split_sentinels": "failover.test_splits_under_sentinel",
    "second_master": "failover.test_splits_under_sentinel",
    "few_sentinels": "failover.test_splits_under_sentinel::test_health_of_sentinels",
    "silent_sentinel": "failover.test_splits_under_sentinel::test_health_of_sentinels",
    "unnamed_sentinels": "failover.test_splits_under_sentinel::test_health_of_sentinels",
    "silent_replica": "engine.test_health::test_a_replica_that_stands_still",
    "outbox_missing": "outbox.test_restored::test_a_server_that_goes_back",
    "outbox_unconfirmed": "outbox.test_frozen_relay::test_who_may_not_ask_is_told",
}
"""Row → the test that brings it, on servers of its own."""


def text_of(guide: str) -> str:
    return (PACKAGE / f"guide/{guide}.md").read_text()


def findings(looked: Looked) -> dict[str, list[Wrong]]:
    """Name → what a look finds."""
    bounds = dict(looked.bounds)
    if not bounds.pop("deep", False):
        wrong = list(map(Wrong, looked.engine.health(**bounds).findings))
    else:
        with connected(EngineAccess(looked.engine).options) as driver:
            wrong = [each for _, some in find_all(looked.engine, driver, everything=False) for each in some]
    told: dict[str, list[Wrong]] = {}
    for each in wrong:
        told.setdefault(each.finding.name, []).append(each)
    return told


def mend(engine: Engine, wrong: list[Wrong]) -> None:
    with connected(EngineAccess(engine).options) as driver:
        for each in wrong:
            assert each.mend is not None
            assert run(driver, each.mend(), None).left == 0


def walk(name: str, steps: Fault) -> None:
    row, looked = TABLE[name], next(steps)
    deep = {"deep": True} if row.look == "deep" or row.fix else {}
    looked.bounds = {**looked.bounds, **deep}
    wrong = wait_until(lambda: findings(looked).get(name, []), f"{name} is found", timeout=SEEN_S)
    for each in wrong:
        assert each.finding.severity in row.severities
        assert each.finding.advice or "more of this kind" in each.finding.text
    if row.fix:
        mend(looked.engine, wrong)
    assert next(steps, None) is None
    wait_until(lambda: name not in findings(looked), f"{name} is gone", timeout=SEEN_S)


LONG = {
    *("new_replica", "unread_topology", "ahead_shard", "deaf", "strays", "unserved_shards", "overdue_schedule"),
    *("stuck_key", "spool_refused", "spool_broken", "spool_waits", "outbox_put_aside", "held_places"),
}
"""Rows whose faults take a second or more."""


def walked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in sorted(names)]


@pytest.mark.parametrize("row", walked(FAULTS))
def test_a_fault_brings_its_row_and_it_goes_again(world: World, row: str) -> None:
    walk(row, FAULTS[row](world))


@pytest.mark.parametrize("row", walked(ON_TUNED))
def test_a_server_brings_its_row_and_it_goes_again(world: World, tuned: Server, row: str) -> None:
    walk(row, ON_TUNED[row](world, tuned))


def test_every_row_has_a_fault() -> None:
    named = [*FAULTS, *ON_TUNED, *ELSEWHERE]
    assert sorted(named) == sorted(TABLE)
    for place in ELSEWHERE.values():
        module, _, test = place.partition("::")
        assert test == "" or hasattr(importlib.import_module(f"tests.{module}"), test)


def test_the_table_is_told_on_its_page() -> None:
    def shown(text: str) -> str:
        return re.sub(r"\{[^}]*\}", "…", text)

    rows = []
    for row in TABLE.values():
        cells = (f"`{row.name}`", ", ".join(row.severities), row.look, row.check, shown(row.text), shown(row.advice))
        rows.append(f"| {' | '.join(cells)} |")
    assert [line for line in text_of("findings").splitlines() if line.startswith("| `")] == rows


def test_every_row_says_what_to_do_under_a_heading_of_doctor() -> None:
    for row in TABLE.values():
        assert row.advice
        assert row.check in OK or row.name == "unlooked"
        assert list(row.severities) == sorted(row.severities, key=SEVERITIES.index)
    texts = [row.text for row in TABLE.values() if not row.text.startswith("{")]
    assert len(texts) == len(set(texts)), "no sentence is written twice"


def test_pages_name_rows() -> None:
    named = set(re.findall(r"findings? `(\w+)`", text_of("failures")))
    assert len(named) > 20
    assert named <= TABLE.keys()


def route(topic: str) -> Finding:
    return found("route", about=topic, topic=topic, to="x", by="", error="away")


def test_some_of_each_name_are_told_the_worst_first() -> None:
    told = in_order([found("no_disk", about="a", node="a"), *map(route, "abcde"), found("no_dispatcher")])
    assert [(each.name, each.about) for each in told] == [
        ("no_dispatcher", ""), ("route", "a"), ("route", "b"), ("route", "c"), ("route", ""), ("no_disk", "a"),
    ]  # fmt: skip
    assert str(told[EXAMPLES + 1]) == "2 more of this kind (route), 5 in all"


def test_since_is_known_to_a_process_that_looked_before() -> None:
    seen, instants = FirstSeen(), [dt.datetime(2030, 1, day, tzinfo=dt.UTC) for day in range(1, 6)]
    since = [
        {each.about: each.since for each in seen.dated(map(route, topics), at)}
        for topics, at in zip(("a", "ab", "ab", "b", "ab"), instants, strict=True)
    ]
    assert since == [
        {"a": None},
        {"a": None, "b": instants[1]},
        {"a": None, "b": instants[1]},
        {"b": instants[1]},
        {"a": instants[4], "b": instants[1]},
    ]
