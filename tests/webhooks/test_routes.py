"""Webhooks as a route: each task goes to the URL that it was pushed with, and an endpoint holds up its own key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable

import pytest

from shardq import Engine, Task, TaskInfo, webhook_secret
from shardq.errors import InvalidOption, InvalidUrl
from tests.sinks.nasty import HANG, READ, NastyServer, Step
from tests.support.engines import SHARDS, Engines
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.webhooks.posting import LOOPBACK, OK, SECRET, answering, head_of

MASTER = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ROUTE = "webhook://#http=yes&timeout=5"

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)


@pytest.fixture
def posting(engines: Engines, url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that dispatches, and may send hooks to this machine."""
    monkeypatch.setenv("SHARDQ_SECRET_MASTER", MASTER)
    engine = engines.opened(url, name=name, shards=SHARDS, timeout=10.0, sinks=[LOOPBACK])
    engine.start()
    return engine


def at(server: NastyServer, path: str = "/in") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def waiting(engine: Engine, id: str) -> Callable[[], TaskInfo | None]:
    """The task, once it has failed and waits for its next attempt."""

    def found() -> TaskInfo | None:
        task = engine.get(id)
        return task if task is not None and task.failures and task.state == "scheduled" else None

    return found


def verified(request: bytes, secret: str) -> bool:
    head, body = head_of(request), request.partition(b"\r\n\r\n")[2]
    signed = f"{head['webhook-id']}.{head['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    made = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return made in head["webhook-signature"].split()


def test_each_task_goes_to_its_url_signed_by_the_secret_of_its_endpoint(posting: Engine) -> None:
    posting.forward("hooks", to=f"{ROUTE}&sign.key=${{MASTER}}")
    with NastyServer([READ, OK]) as one, NastyServer([READ, OK]) as other:
        ids = [posting.push({"n": 1}, topic="hooks", url=at(one, "/a?b=1"), headers={"trace": "t"})]
        ids += [posting.push({"n": 2}, topic="hooks", url=at(other), key="customer-7")]
        wait_until(lambda: one.requests and other.requests, "both are there")
        [first], [second] = one.requests, other.requests
    head = head_of(first)
    assert head[""] == "POST /a?b=1 HTTP/1.1"
    assert (head["webhook-id"], head["trace"], head["content-type"]) == (ids[0], "t", "application/json")
    assert not [name for name in head if name.startswith("shardq-")]
    assert first.endswith(b'{"n":1}')
    assert verified(first, webhook_secret(MASTER, at(one, "/a?b=1")))
    assert verified(second, webhook_secret(MASTER, at(other), "customer-7"))
    assert not verified(second, webhook_secret(MASTER, at(other)))


def test_one_secret_for_all(posting: Engine) -> None:
    posting.forward("hooks", to=f"{ROUTE}&sign={SECRET}")
    with NastyServer([READ, OK]) as server:
        posting.push({"n": 1}, topic="hooks", url=at(server))
        wait_until(lambda: server.requests, "it is there")
        assert verified(server.requests[0], SECRET)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("webhook://customer.example/in", "has no host: each task has a URL of its own"),
        ("webhook:///in", "has no host"),
        ("webhook://#sign=abc", "sign= of a webhook:// route, .*, is not a key of Standard Webhooks"),
        ("webhook://#sign.key=short", "needs at least 24 bytes"),
        ("webhook://#sign.key=", "empty|no value"),
        ("webhook://#sign=${A}&sign.key=${B}", "give one of them"),
        ("webhook://#http=no", "give http=yes"),
        ("webhook://#timeout=${A}", "stands for a secret"),
        ("webhook://#max_attempts=0", "give a whole number from 1"),
        ("webhook://#method=PUT", "not known; allowed are: timeout, sign, sign.key, http, max_attempts"),
    ],
)
def test_it_is_checked_when_it_is_set(engine: Engine, to: str, said: str) -> None:
    with pytest.raises(InvalidUrl, match=said):
        engine.forward("hooks", to=to)
    with pytest.raises(InvalidOption, match="side="):
        engine.forward("hooks", to="webhook://", side="left")


def test_unsigned_hooks_are_told(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "shardq.sinks"):
        engine.forward("hooks", to="webhook://#sign.key=${MASTER}")
        assert not caplog.messages
        engine.forward("hooks", to="webhook://")
        engine.configure(topics={"more": {"forward": "webhook://#http=yes"}})
    assert len(caplog.messages) == 2
    for said in caplog.messages:
        assert "not signed" in said
        assert "webhook://#sign.key=${MASTER}" in said


def test_a_master_secret_is_not_shown(engine: Engine) -> None:
    engine.forward("hooks", to=f"webhook://#sign.key={MASTER}")
    route = engine.stats().topics["hooks"].route
    assert route is not None
    assert route.to == "webhook://#sign.key=***"


def test_a_task_without_a_url_is_dead(posting: Engine) -> None:
    posting.forward("hooks", to=ROUTE)
    id = posting.push(1, topic="hooks")
    wait_until(lambda: state_of(posting, id) == "dead", "it is dead")
    task = posting.get(id)
    assert task is not None
    assert task.reason == (
        "it has no URL to go to: give one where it is pushed, as engine.push(…, topic='hooks', url='https://HOST/PATH')"
    )
    assert posting.health().ok


@pytest.mark.parametrize("sinks", [None, ["webhook://*"], ["webhook://*.example.org"]])
def test_private_addresses_are_refused(engines: Engines, url: str, name: str, sinks: list[str] | None) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS, sinks=sinks)
    engine.forward("hooks", to=ROUTE)
    engine.start()
    with NastyServer([READ, OK]) as server:
        id = engine.push(1, topic="hooks", url=at(server))
        wait_until(lambda: state_of(engine, id) == "dead", "it is dead")
        task = engine.get(id)
        assert not server.requests
    assert task is not None
    assert "webhook://" in (task.reason or "")
    if sinks in (None, ["webhook://*"]):
        assert f"sinks=['webhook://127.0.0.1:{server.port}']" in (task.reason or "")
        assert "#http=yes" in (task.reason or "")


def test_sinks_without_webhooks(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS, sinks=["https://*.example.org"])
    with pytest.raises(InvalidUrl, match=r"may send no webhooks: .* webhook://\*"):
        engine.forward("hooks", to="webhook://")


def test_https_alone_unless_it_is_said(posting: Engine) -> None:
    posting.forward("hooks", to="webhook://")
    id = posting.push(1, topic="hooks", url="http://127.0.0.1:1/")
    wait_until(lambda: state_of(posting, id) == "dead", "it is dead")
    task = posting.get(id)
    assert task is not None
    assert "add http=yes to the route: webhook://#http=yes" in (task.reason or "")


def test_a_secret_that_is_missing_is_a_fault_of_the_route(posting: Engine) -> None:
    """It is not the endpoint's, nor the task's: nothing is tried, and all tasks wait."""
    posting.forward("hooks", to="webhook://#http=yes&sign.key=${NOBODY_HAS_IT}")
    id = posting.push(1, topic="hooks", url="http://127.0.0.1:1/")
    wait_until(lambda: not posting.health().ok, "it is told")
    task = posting.get(id)
    assert task is not None
    assert (task.state in ("held", "ready"), task.attempt) == (True, 1)
    assert any("NOBODY_HAS_IT" in each for each in posting.health().reasons)


@pytest.mark.slow
def test_each_endpoint_waits_alone(posting: Engine) -> None:
    """They answer 500, 503 with Retry-After, and 410; one hangs, one refuses; the others have theirs meanwhile."""
    posting.forward("hooks", to="webhook://#http=yes&timeout=3")
    bad: dict[str, list[Step]] = {
        "failing": answering("500 X", body=b"why"),
        "busy": answering("503 Busy", "Retry-After: 600"),
        "gone": answering("410 Gone"),
        "hanging": [READ, HANG],
    }
    servers = {name: NastyServer(script) for name, script in bad.items()}
    with servers["failing"], servers["busy"], servers["gone"], servers["hanging"], NastyServer([READ, OK]) as fine:
        urls = {name: at(server) for name, server in servers.items()} | {"refusing": "http://127.0.0.1:1/"}
        ids = {
            name: posting.push_many([Task(n, topic="hooks", url=url, key=name) for n in range(3)])
            for name, url in urls.items()
        }
        posting.push_many([Task(n, topic="hooks", url=at(fine, f"/{n % 20}"), id=f"{n:03}") for n in range(200)])
        wait_until(lambda: len(fine.requests) == 200, "the others have theirs")
        assert state_of(posting, ids["hanging"][0]) == "leased", "nobody has waited for it"
        for name in ("failing", "refusing", "hanging"):
            wait_until(waiting(posting, ids[name][0]), f"the one that is {name} has failed")
        wait_until(lambda: state_of(posting, ids["gone"][0]) == "dead", "the task of the one that is gone is dead")
        assert {name: len(server.requests) for name, server in servers.items()} == dict.fromkeys(servers, 1)
    of_each: dict[str, list[int]] = {}
    for request in fine.requests:
        head, _, body = request.partition(b"\r\n\r\n")
        of_each.setdefault(head.split()[1].decode(), []).append(json.loads(body))
    assert all(each == sorted(each) for each in of_each.values()), "in order"
    keys = {each.key: each for each in posting.keys("hooks")}
    shown = {name: (each.why, each.failures, each.reason) for name, each in keys.items()}
    assert shown["failing"] == ("backoff", 1, "HTTP 500 X: why")
    assert shown["busy"] == ("hold", 0, None)
    assert shown["gone"] == ("hold", 0, None)
    assert shown["hanging"] == ("backoff", 1, f"{at(servers['hanging'], '')}: no answer within 3 s (timeout=)")
    assert shown["refusing"][:2] == ("backoff", 1)
    assert "can't be reached: Connection refused" in (shown["refusing"][2] or "")
    untils = {name: each.until.timestamp() - time.time() for name, each in keys.items() if each.until is not None}
    assert 500 < untils["busy"] <= 600
    assert 86_000 < untils["gone"] <= 86_400
    assert all(-2 < untils[name] < 7 for name in ("failing", "refusing", "hanging"))
    health = posting.health()
    assert (health.ok, health.reasons) == (True, [])


def test_a_failing_endpoint_is_tried_by_the_schedule_then_dead(posting: Engine) -> None:
    posting.forward("hooks", to=ROUTE)
    with NastyServer(answering("500 X")) as server:
        id = posting.push(1, topic="hooks", url=at(server))
        for failures, (low, high) in enumerate([(4, 6), (240, 360), (1440, 2160)], start=1):
            task = wait_until(waiting(posting, id), "it waits for the next attempt")
            assert task is not None
            assert task.due is not None
            assert task.failures == failures
            assert low - 2 < task.due.timestamp() - time.time() < high
            posting.reschedule(id, delay=0)
            wait_until(lambda: len(server.requests) > failures, "it is tried again")  # noqa: B023  at once
        for _ in range(6):
            wait_until(waiting(posting, id), "it waits for the next attempt")
            before = len(server.requests)
            posting.reschedule(id, delay=0)
            wait_until(lambda: len(server.requests) > before, "it is tried again")  # noqa: B023  at once
            wait_until(lambda: state_of(posting, id) in ("scheduled", "dead"), "it is settled")
        wait_until(lambda: state_of(posting, id) == "dead", "ten attempts, three days")
        assert len(server.requests) == 10


def test_attempts_of_the_route_and_of_the_task(posting: Engine) -> None:
    posting.forward("hooks", to=f"{ROUTE}&max_attempts=1")
    with NastyServer(answering("500 X")) as server:
        once = posting.push(1, topic="hooks", url=at(server))
        twice = posting.push(1, topic="hooks", url=at(server, "/other"), max_attempts=2)
        wait_until(lambda: state_of(posting, once) == "dead", "its only attempt has failed")
        wait_until(waiting(posting, twice), "it has another one")
