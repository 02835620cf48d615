"""Keys: the state held, the largest keys of a topic, holds, and the limits of each key."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shardq import Engine, Task
from shardq.core.layout.topology import Limit
from shardq.dashboard import snapshots
from tests.dashboard.browsing import Browser
from tests.dashboard.test_pages import cells
from tests.support.waiting import wait_until

ONE = "/topics/one?topic=webhook"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page looks anew."""
    monkeypatch.setattr(snapshots, "LEAST_S", 0.0)
    monkeypatch.setattr(snapshots, "KEYS_S", 0.0)


@pytest.fixture
def keyed(engine: Engine) -> Engine:
    engine.push_many([Task(n, topic="webhook", key="customer-7", id=str(n)) for n in range(4)])
    engine.push("x", topic="webhook", key="<b>&", id="1")
    engine.push("x", topic="mail")
    engine.hold("webhook", key="<b>&", until=time.time() + 600)
    engine.start()
    wait_until(lambda: (engine.stats().ready, engine.stats().held) == (2, 4), "one is out of each")
    return engine


def test_a_topic_shows_its_largest_keys(keyed: Engine, client: Browser) -> None:
    text = client.get(ONE).text
    keys = [row for row in cells(text) if row[0] in ("customer-7", "&lt;b&gt;&amp;")]
    assert [[row[0], row[1], row[3], row[4], row[5]] for row in keys] == [
        ["customer-7", "3", "1", "0", "0"],
        ["&lt;b&gt;&amp;", "1", "0", "0", "0"],
    ]
    assert keys[0][6] == "its ready and leased tasks"
    assert keys[1][6].startswith("the end of a hold, until 20")
    assert "/tasks?topic=webhook&amp;key=customer-7" in text
    assert '<a href="/tasks?state=held&amp;topic=webhook">held</a>' in text
    assert "Keys" not in client.get("/topics/one?topic=mail").text


def test_a_topic_shows_how_long_its_tasks_wait_for_their_keys(keyed: Engine, client: Browser) -> None:
    wait_until(lambda: "key wait p99" in client.get(ONE).text, "the dispatcher has reported", timeout=30)
    assert "key wait" not in client.get("/topics/one?topic=mail").text


def test_without_keys_nothing_is_said_of_them(engine: Engine, client: Browser) -> None:
    engine.push("x", topic="mail", delay=60)
    for path in ("/", "/tasks", "/topics", "/topics/one?topic=mail"):
        text = client.get(path).text
        assert "held" not in text.replace("Held by", "").replace("held by", "")
        assert "Hold" not in text


def test_a_key_is_put_on_hold_and_let_go(keyed: Engine, client: Browser) -> None:
    def hold(**fields: str) -> Any:
        return client.submit(ONE, "/topics/hold", topic="webhook", **fields).text

    assert "The key customer-7 of webhook gives out nothing until 20" in hold(key="customer-7", until="1h")
    assert {each.key: each.why for each in keyed.keys("webhook")} == {"customer-7": "hold", "<b>&": "hold"}
    assert "The key customer-7 of webhook goes on." in hold(key="customer-7", until="")
    assert "until: " in hold(key="customer-7", until="tomorrow")
    assert "The key &lt;b&gt;&amp; of webhook goes on." in hold(key="<b>&")
    wait_until(lambda: keyed.stats().held == 3, "the one that was on hold is ready")


def test_the_limits_of_each_key(keyed: Engine, client: Browser) -> None:
    keyed.limit("webhook", per_key=1, on_failure="skip")

    def limit(**fields: str) -> Any:
        return client.submit(ONE, "/topics/limit", topic="webhook", **{"from": "one"}, **fields).text

    assert 'name="per_key" size="7" inputmode="numeric" autocomplete="off" value="1"' in client.get(ONE).text
    assert "1 of each key at once" in limit(rate="5", per_key="1")
    keyed.stats()
    assert keyed.topology.settings_of("webhook").limit == Limit(rate=5, per_key=1, on_failure="skip")
    assert "2 of each key at once and 0.5 of each key a second" in limit(per_key="2", per_key_rate="30/m")
    keyed.stats()
    assert keyed.topology.settings_of("webhook").limit == Limit(per_key=2, per_key_rate=0.5)


def test_lists_and_one_task(keyed: Engine, client: Browser) -> None:
    text = client.get("/tasks?state=held&topic=webhook&key=customer-7").text
    assert [row[1].split("/")[-1] if len(row) > 1 else "" for row in cells(text)[1:]] == ["1", "2", "3"]
    assert "held" in client.get("/tasks").text
    of_key = [row for row in cells(client.get("/tasks?topic=webhook&key=customer-7").text) if len(row) > 3][1:]
    assert [row[2] for row in of_key] == ["ready", "held", "held", "held"]
    assert [bool(row[3]) for row in of_key] == [False, True, True, True]
    one = client.get("/tasks/one?id=webhook/customer-7/2").text
    assert "<strong>held</strong>" in one
    assert ", and waits for" in " ".join(one.split())
    assert ">customer-7</a>" in one
    assert 'title="they are due, and wait for their key"' in client.get("/").text
