"""How a user tests a program: ``worker.py`` in virtual time. Its engine goes by the test's clock, on the test's server.

The fixtures are those of the pytest plugin ``shardq.testing``.
"""

import pytest

import shardq
from shardq.testing import Clock
from tests.examples import worker as app


@pytest.fixture
def clock(shardq_clock: Clock) -> Clock:
    shardq_clock.adopt(app.engine, shards=1)
    shardq_clock.bind(app.worker)
    return shardq_clock


def test_a_mail_is_sent_at_its_time(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    app.send.options(delay=7 * 86_400).push("ann@example.org", "how do you like it?")
    clock.advance(days=6)
    assert capsys.readouterr().out == ""
    clock.advance(days=1)
    assert capsys.readouterr().out == "mail to ann@example.org: how do you like it?\n"


def test_an_invoice_is_tried_twice(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    app.engine.push({"order": 42}, delay=3600, topic="invoice")
    shardq.testing.assert_pushed(app.engine, "invoice", {"order": 42}, delay=3600)
    first, second = clock.advance(hours=2)
    assert (first.attempt, second.attempt) == (1, 2)
    assert capsys.readouterr().out == "invoice of order 42, attempt 2\n"
    shardq.testing.assert_not_pushed(app.engine, "invoice")


def test_a_picture_is_shrunk_once_a_minute(clock: Clock) -> None:
    once = app.shrink.options(id="cat-320", dedup=60)
    assert once.push("cat.jpg", width=320).outcome == "pushed"
    clock.advance()
    assert once.push("cat.jpg", width=320).outcome == "seen"
    clock.advance(minutes=1)
    assert once.push("cat.jpg", width=320).outcome == "pushed"
