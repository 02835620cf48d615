"""What a page costs does not grow with the number of tasks: neither the servers' work for it, nor its length."""

from __future__ import annotations

import math
from urllib.parse import quote

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.dashboard import snapshots
from tests.dashboard.browsing import Browser
from tests.dashboard.test_bulk import bury
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

FEW, MANY = 2_000, 20_000

DEAD = 700
"""More than the page of reasons looks at whole."""

MOST_BYTES = 80_000

PAGES = (
    "/",
    "/future",
    "/shards",
    "/nodes",
    "/topics",
    "/topics/one?topic=mail",
    "/fleet",
    "/tasks",
    "/tasks?topic=mail&state=scheduled",
    "/tasks?topic=rare&state=scheduled",
    "/tasks?due=2h..",
    "/tasks?state=ready",
    "/tasks?state=dead",
    "/dead",
    "/dead?topic=mail",
    "/tasks/bulk",
)


def fill(engine: Engine, count: int) -> str:
    """Pushes so many tasks that wait, among them some of one instant, and some that are ready or dead."""
    engine.push_many([Task({"n": n}, delay=FAR_S + n % 100, topic="mail") for n in range(count)])
    bury(engine, [f"TimeoutError: {n}" for n in range(DEAD)])
    ids = engine.push_many([Task(n, topic="other") for n in range(count // 10)])
    engine.start()
    wait_until(lambda: (task := engine.get(ids[-1])) and task.state == "ready", "the last one is ready")
    engine.stop()
    return str(ids[0])


def work(server: Server, client: Browser, path: str) -> tuple[int, int]:
    """Commands that the server ran for a page, those of scripts included, and bytes that it sent."""

    def counted() -> tuple[int, int]:
        commands = server.ask("INFO", "commandstats")
        sent = server.ask("INFO", "stats")["total_net_output_bytes"]
        return sum(each["calls"] for name, each in commands.items() if name != "cmdstat_info"), sent

    before = counted()
    answer = client.get(path)
    after = counted()
    assert answer.status_code == 200, path
    assert len(answer.content) <= MOST_BYTES, path
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.slow
def test_pages_cost_the_same_with_ten_times_the_tasks(
    engine: Engine, client: Browser, single: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "FORECAST_S", 0.0)
    # the history is of one size, and begins when a dispatcher has run for a minute: it is read once
    monkeypatch.setattr(snapshots, "TIMELINE_S", math.inf)
    paths = list(PAGES)
    id = fill(engine, FEW)
    paths.append(f"/tasks/one?id={quote(id)}")
    for path in paths:  # the first of each loads scripts
        client.get(path)
    few = {path: work(single, client, path) for path in paths}
    fill(engine, MANY - FEW)
    for path in paths:
        commands, sent = work(single, client, path)
        # a search by halving takes some steps more; a look at the engine, some 300, is for all pages of a second
        assert commands <= 1.5 * few[path][0] + 600, path
        assert sent <= 1.5 * few[path][1] + 60_000, path
