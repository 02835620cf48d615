"""Some hundred endpoints on real sockets: a few that hang, and a few that nobody listens at, hold up no other; and none
is lost where the process that posts is killed.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from shardq import Task
from tests.support.engines import SHARDS, Engines
from tests.support.waiting import wait_until
from tests.webhooks.endpoints import Endpoints
from tests.webhooks.posting import LOOPBACK

ENDPOINTS, EVENTS = 300, 5
HANGING, REFUSING = 3, 3
ROUTE = "webhook://#http=yes&timeout=60"

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)


def tasks_for(urls: list[str]) -> list[Task]:
    return [
        Task(event, topic="hooks", url=url, id=f"{number}-{event}")
        for event in range(EVENTS)
        for number, url in enumerate(urls)
    ]


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_nobody_waits_for_those_that_hang_or_refuse(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS, timeout=20.0, sinks=[LOOPBACK])
    engine.forward("hooks", to=ROUTE)
    engine.start()
    with Endpoints(ENDPOINTS, hanging=HANGING) as endpoints:
        urls = [f"http://127.0.0.1:{port}/{number}" for number, port in enumerate(endpoints.ports)]
        urls += [f"http://127.0.0.1:{1 + number}/" for number in range(REFUSING)]
        began = time.monotonic()
        engine.push_many(tasks_for(urls))
        others = range(HANGING, ENDPOINTS)
        endpoints.wait_for(len(others) * EVENTS + HANGING, "the others have theirs, and those that hang are asked")
        latest = max(each.at for number in others for each in endpoints.received[number])
        assert latest - began < 30, "it takes a second or two; for one that hangs it would be a minute"
        for number in others:
            assert [each.body for each in endpoints.received[number]] == [str(event) for event in range(EVENTS)]
        assert set(endpoints.most_open.values()) == {1}, "one at a time"
        assert [len(endpoints.received[number]) for number in range(HANGING)] == [1] * HANGING

        def accounted() -> bool:
            stats = engine.stats().topics["hooks"]
            return (stats.leased, stats.scheduled + stats.held, stats.ready) == (
                HANGING,
                (HANGING + REFUSING) * EVENTS - HANGING,
                0,
            )

        wait_until(accounted, "each of the others is settled, and all of the bad ones are there")
        failed = sorted(task.id.rpartition("/")[2] for task in engine.tasks("hooks") if task.failures)
        assert failed == [f"{ENDPOINTS + number}-0" for number in range(REFUSING)]
        health = engine.health()
        assert (health.ok, health.reasons) == (True, [])
        sinks = {each.topic: each for member in engine.fleet() for each in member.sinks}
        assert (sinks["hooks"].circuit, sinks["hooks"].error) == ("closed", "")


@pytest.mark.slow
@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_none_is_lost_where_the_process_is_killed(engines: Engines, url: str, name: str) -> None:
    """A ledger: each event reaches its endpoint, in order; one that is sent twice was under way at a kill."""
    engine = engines.opened(url, name=name, shards=SHARDS, timeout=20.0, sinks=[LOOPBACK])
    engine.forward("hooks", to=ROUTE)
    kills = 2
    with Endpoints(ENDPOINTS) as endpoints:
        urls = [f"http://127.0.0.1:{port}/{number}" for number, port in enumerate(endpoints.ports)]
        tasks = tasks_for(urls)
        ids = engine.push_many(tasks)
        for round in range(kills + 1):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.webhooks.posting_process", url, name], stdout=subprocess.PIPE
            )
            try:
                if round < kills:
                    endpoints.wait_for(len(tasks) * (round + 1) // (kills + 2), "some are sent")
                else:
                    wait_until(
                        lambda: (
                            {each.id for some in list(endpoints.received.values()) for each in list(some)} >= {*ids}
                        ),
                        "all are sent",
                        timeout=120,
                    )
                    wait_until(lambda: not engine.stats().topics["hooks"].leased, "all are settled")
            finally:
                process.kill()
                process.communicate()
        for number in range(ENDPOINTS):
            bodies = [int(each.body) for each in endpoints.received[number]]
            assert bodies == sorted(bodies), "in order"
            assert sorted({*bodies}) == list(range(EVENTS))
            assert len(bodies) <= EVENTS + kills, "at most what was under way comes twice"
        stats = engine.stats()
        assert (stats.scheduled, stats.held, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0, 0)
