"""The page of schedules, and what its buttons do."""

from __future__ import annotations

import pytest

from shardq import Engine
from tests.dashboard.browsing import Browser


def test_schedules_are_listed_searched_and_paged(engine: Engine, client: Browser) -> None:
    assert "No schedule is declared" in client.get("/schedules").text
    engine.every("nightly", cron="0 3 * * *", tz="Europe/Berlin", topic="reports")
    for n in range(60):
        engine.every(f"poll-{n:02}", interval=3600)
    first = client.get("/schedules").text
    assert '<code class="nowrap">0 3 * * *</code> Europe/<wbr>Berlin' in first
    assert "every 60 min" in first
    assert "1 to 50 of 61" in first
    assert "poll-59" in client.get("/schedules?begin=50").text
    found = client.get("/schedules?name=poll-5").text
    assert found.count('<th scope="row"') == 10
    assert "No schedule has" in client.get("/schedules?name=none").text
    assert client.get("/schedules?begin=-1").status_code == 400


def test_a_schedule_is_paused_resumed_run_and_removed(engine: Engine, client: Browser) -> None:
    engine.every("poll", interval=3600, topic="mail", payload={"n": 1})

    def state() -> list[bool]:
        return [each.paused for each in engine.schedules()]

    asked = client.submit("/schedules", "/schedules/pause", schedule="poll")
    assert asked.status_code == 200
    assert "Pause poll?" in asked.text
    assert state() == [False], "it asks once"
    client.submit("/schedules", "/schedules/pause", schedule="poll", sure="yes")
    assert state() == [True]
    client.submit("/schedules", "/schedules/resume", schedule="poll")
    assert state() == [False]
    page = client.submit("/schedules", "/schedules/run", schedule="poll", sure="yes")
    assert "a task of poll is due now" in page.text
    assert {"n": 1} in [task.payload for task in engine.tasks(topic="mail")]
    client.submit("/schedules", "/schedules/remove", schedule="poll", sure="yes")
    assert state() == []
    changes = client.get("/changes").text
    assert changes.index("schedule poll: removed") < changes.index("schedule poll: resumed"), "the newest first"


@pytest.mark.parametrize("action", ["pause", "resume", "run"])
def test_a_schedule_that_is_gone(engine: Engine, client: Browser, action: str) -> None:
    engine.every("poll", interval=3600)
    answer = client.submit("/schedules", f"/schedules/{action}", schedule="none", sure="yes")
    assert answer.status_code in (404, 400)
    assert "none" in answer.text
