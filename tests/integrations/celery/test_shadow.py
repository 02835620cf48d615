"""Shadow mode: Celery delays as before, shardq beside it, and the report compares them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from shardq.errors import InvalidOption
from shardq.integrations.celery import delay_through
from tests.integrations.celery.conftest import Make
from tests.integrations.celery.test_through_redis import waiting
from tests.support.waiting import wait_until


def reported(module: Any, due: int) -> Any:
    """The report, once so many runs are due and seen on both sides."""

    def whole() -> Any:
        report = module.delaying.report()
        return report if (report.due, report.queue.seen, report.shardq.seen) == (due, due, due) else None

    return wait_until(whole, "both sides have seen all", timeout=60)


@pytest.mark.slow
def test_both_are_compared(make: Make) -> None:
    stand, module = make(shadow=True)
    with stand.worker("--pool=prefork", "--concurrency=2"):
        for n in range(4):
            module.add.apply_async((n, 1), countdown=1)
        again = module.again.apply_async((1,), countdown=1)
        later = module.add.apply_async((9, 9), countdown=1000)
        gone = module.add.apply_async((9, 9), countdown=1000)
        gone.revoke()
        module.add.delay(1, 1)
        assert len(stand.wait(7)) == 7
        report = reported(module, 6)
    assert (report.delayed, report.cancelled, report.unseen) == (8, 1, 0)
    assert report.bytes > 500
    for side in (report.queue, report.shardq):
        assert (side.missing, side.twice, side.early) == (0, 0, 0)
        assert side.late is not None
        assert 0 <= side.late[0] <= side.late[1] <= side.late[2]
    assert [run["retries"] for run in stand.runs() if run["id"] == again.id] == [0, 1]
    assert [task.id.partition("/")[2] for task in waiting(module)] == [later.id]
    text = str(module.delaying.report(forget=True))
    assert "8 delayed, 6 due by now, 1 cancelled" in text
    assert module.delaying.report().delayed == 0


def test_an_engine_that_is_away_disturbs_nobody(make: Make) -> None:
    stand, module = make(shadow=True, engine="redis://127.0.0.1:1", timeout=0.1, connect_timeout=0.1, dispatching=False)
    for _ in range(3):
        module.add.apply_async((1, 1), countdown=1000).revoke()
    assert stand.redis.llen(stand.queue) == 3


def test_there_is_no_report_without_it(make: Make) -> None:
    _, module = make(dispatching=False)
    with pytest.raises(InvalidOption, match="shadow=True"):
        module.delaying.report()
    module.delaying.remove()
    with (
        delay_through(module.app, module.engine, above=0.5, shadow=True),
        pytest.raises(InvalidOption, match="in shadow mode"),
    ):
        delay_through(module.app, module.engine, above=0.5)


def test_an_eta_without_a_zone_is_read_as_celery_reads_it(make: Make) -> None:
    """In UTC, whatever the app's time zone."""
    _, module = make(shadow=True, dispatching=False, conf={"timezone": "Asia/Tokyo"})
    naive = dt.datetime(2100, 1, 1, 12)
    sent = module.add.apply_async((1, 1), eta=naive)
    [task] = [task for task in waiting(module) if task.id.endswith(sent.id)]
    assert task.due == naive.replace(tzinfo=dt.UTC)
