"""An unmodified worker runs what has waited in shardq: once, in time, with all that belongs to it."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import celery
import pytest

from tests.integrations.celery.conftest import Make
from tests.support.waiting import wait_until

LATE_S = 30.0


def on_time(run: dict[str, Any]) -> bool:
    late = run["at"] - dt.datetime.fromisoformat(run["eta"]).timestamp()
    return -0.01 <= late < LATE_S


@pytest.mark.slow
def test_chains_chords_links_and_retries(make: Make) -> None:
    """All at once, as a worker takes seconds to start. ``retry`` in a child of the worker goes through shardq, too."""
    stand, module = make(opened=True)
    add, total, failed = module.add, module.total, module.failed
    with stand.worker("--pool=prefork", "--concurrency=2"):
        plain = add.apply_async((1, 1), countdown=1, expires=60, priority=9, headers={"x-tenant": "é"})
        linked = add.apply_async((1, 2), countdown=1, link=add.s(10).set(countdown=1))
        broken = module.failing.apply_async(countdown=1, link_error=failed.s().set(countdown=1))
        chain = celery.chain(add.s(1, 3).set(countdown=1), add.s(20).set(countdown=1)).apply_async()
        group = celery.group(add.s(n, n) for n in range(3)).apply_async(countdown=1)
        chord = celery.chord([add.s(n, 5).set(countdown=1) for n in range(3)], total.s().set(countdown=1)).apply_async()
        again = module.again.apply_async((2,), countdown=1)
        replaced = add.apply_async((5, 5), countdown=0.6, task_id="the/same id")
        assert plain.get(60) == 2
        assert linked.get(60) == 3
        assert linked.children[0].get(60) == 13 if linked.children else True
        with pytest.raises(ValueError, match="wanted"):
            broken.get(60)
        assert chain.get(60) == 24
        assert group.get(60) == [0, 2, 4]
        assert chord.get(60) == 18
        assert again.get(60) == 2
        assert replaced.get(60) == 10
        # the link, and the callback of the error, have results of nobody's
        runs = stand.wait(1 + 2 + 2 + 2 + 3 + 4 + 3 + 1)
    assert len(runs) == 18
    assert all(on_time(run) for run in runs)
    by_id = {run["id"]: run for run in runs}
    assert by_id[plain.id]["headers"] == {"x-tenant": "é"}
    assert by_id[plain.id]["info"]["priority"] == 9
    assert by_id[plain.id]["expires"]
    assert [run["retries"] for run in runs if run["id"] == again.id] == [0, 1, 2]
    assert by_id[chain.id]["parent"] == chain.parent.id
    assert {run["group"] for run in runs if run["id"] in {each.id for each in group}} == {group.id}
    assert [topic for topic in module.engine.topology.routes if topic.startswith(f"celery.{stand.queue}")]
    assert os.getpid() not in {run["pid"] for run in runs}
    assert stand.redis.llen(stand.queue) == 0
    wait_until(lambda: (seen := module.engine.stats()).scheduled + seen.ready == 0, "nothing is left")
