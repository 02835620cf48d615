"""The past and the future on the overview: one drawing, within the length of a page."""

from __future__ import annotations

import datetime as dt
import re

import pytest

from shardq import Engine, Forecast, History, Task
from shardq.dashboard import drawing
from shardq.dashboard.drawing import BACKLOG_MIN
from shardq.features.history import HistoryPoint, Row, backlog_minutes
from shardq.http import app
from tests.dashboard.browsing import Browser, browsing
from tests.dashboard.test_pages import LARGEST
from tests.history.seeding import PER_MINUTE, seed_a_day


def test_a_day_of_data_and_what_falls_due(engine: Engine, client: Browser) -> None:
    seed_a_day(engine, ready=500)
    engine.push_many([Task(n, delay=600, topic="mail") for n in range(PER_MINUTE * 2)])
    text = client.get("/?span=hour").text
    assert len(text.encode()) < LARGEST
    assert len(re.findall(r"\d\d:\d\d: 1,000 dispatched, 990 handled, 10 failed, 1 died", text)) == 49
    assert len(re.findall("not recorded for 1 min", text)) >= 10
    assert "16 to 32 shards" in text
    assert "7.0 s late (p99)" in text
    assert "2,000 fall due" in text
    assert '<rect class="much"' in text, "more falls due in a minute than was ever handled in one"
    assert re.search(r"most handled in a minute: 1[67] a second", text)
    assert '/topics/one?topic=mail">mail</a>' in text


@pytest.mark.parametrize("span", ["day", "month"])
def test_other_spans(engine: Engine, client: Browser, span: str) -> None:
    seed_a_day(engine)
    text = client.get("/", params={"span": span}).text
    assert len(text.encode()) < LARGEST
    assert "60,000 dispatched" in text if span == "day" else "dispatched" in text
    assert "/live/overview?span=" + span in text


def test_a_new_engine_knows_no_past(client: Browser) -> None:
    text = client.get("/").text
    assert "Nothing is recorded yet" in text
    assert "not recorded for" not in text
    assert "0 dispatched" not in text, "what is unknown is no zero"


def test_the_column_of_now_is_within_the_drawing() -> None:
    """It has both: what was dispatched, and what is yet to fall due."""
    now = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
    step = dt.timedelta(hours=1)
    past = History(
        now=now,
        step=step,
        points=[HistoryPoint(start=now, minutes=30, dispatched=900, handled=900, failed=0, died=0)],
    )
    future = Forecast(now=now, step=step, overdue=0, buckets=[(now, 800), (now + step, 10)], later=0)
    drawn = drawing.timeline(past, future, "%H:%M")
    assert [kind for kind, _, _ in drawn.columns[0].bars] == ["bar", "due"]
    assert min(y for _, y, _ in drawn.columns[0].bars) >= min(y for y, _ in drawn.counts)
    assert drawn.counts[-1][1] == 2000


@pytest.mark.parametrize("ready", [0, 500])
def test_more_than_was_ever_handled_is_said_after_ten_minutes_with_a_backlog(ready: int) -> None:
    """Before, workers handled what came, and not what they can."""
    now = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
    step, kinds = dt.timedelta(minutes=1), []
    future = Forecast(now=now, step=step, overdue=0, buckets=[(now + step, 2000)], later=0)
    for minutes in (1, BACKLOG_MIN - 1, BACKLOG_MIN):
        rows = [Row(number, 1, ready=ready, dispatched=600, handled=600) for number in range(minutes)]
        points = [HistoryPoint(start=now, minutes=1, ready=ready, dispatched=600, handled=600, failed=0, died=0)]
        past = History(now=now, step=step, points=points, backlog_minutes=backlog_minutes(rows))
        drawn = drawing.timeline(past, future, "%H:%M")
        kinds.append(drawn.columns[-1].bars[0][0])
        assert drawn.judges == (kinds[-1] == "much")
    assert kinds == ["due", "due", "much" if ready else "due"]


def test_a_new_engine_opens_on_the_hour_and_an_old_one_on_the_day(engine: Engine, client: Browser) -> None:
    assert "An hour back and ahead" in client.get("/").text
    assert "/live/overview?span=hour" in client.get("/").text
    seed_a_day(engine)
    with browsing(app(engine)) as later:
        assert "A day back and ahead" in later.get("/").text


def test_an_unknown_span_is_refused(client: Browser) -> None:
    answer = client.get("/?span=year")
    assert answer.status_code == 400
    assert "&#39;hour&#39;" in answer.text
