"""A topic that is forwarded to an HTTP endpoint: what is posted, what each answer means, and a killed endpoint."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from cluster.ports import free_port
from shardq import BadInput, Engine, Task
from shardq.core.layout.topology import Route
from shardq.features.sinks import Failed, Refused, Sent, Unsent
from shardq.features.sinks.http import result_of
from shardq.features.sinks.registry import check
from tests.sinks.seen import left, sink_stats
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker


class Endpoint:
    """The endpoint; it may be killed and started again on its port."""

    def __init__(self, file: Path) -> None:
        self.port = free_port()
        self._file = file
        self._stack = ExitStack()
        file.touch()
        self.start()

    def start(self) -> None:
        self._worker = self._stack.enter_context(Worker("tests.sinks.endpoint", self.port, self._file))
        assert self._worker.said() == "up"

    def kill(self) -> None:
        self._worker.kill()

    def end(self) -> None:
        self._stack.close()

    def requests(self) -> list[tuple[str, Any]]:
        """Key and (path, status, payload, headers) of each request."""
        whole = self._file.read_text().rpartition("\n")[0].splitlines()
        return [(key, json.loads(rest)) for key, _, rest in (line.partition("\t") for line in whole)]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    endpoint = Endpoint(tmp_path / "requests")
    yield endpoint
    endpoint.end()


def test_a_post_for_each_task(feeding: Engine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDQ_SECRET_HOOK_PASSWORD", "p@ss/word")
    feeding.forward("hooks", to=f"http://shop:${{HOOK_PASSWORD}}@127.0.0.1:{endpoint.port}/in?from=shardq")
    headers = {"traceparent": "00-1", "Content-Length": "7", "odd name": "x", "text": "é"}
    id = feeding.push({"n": 1}, topic="hooks", headers=headers)
    wait_until(endpoint.requests, "it has arrived")
    ((key, (path, _, payload, got)),) = endpoint.requests()
    assert (key, path, payload) == (id, "/in?from=shardq", {"n": 1})
    assert {"traceparent": "00-1", "Content-Type": "application/json", "Shardq-Topic": "hooks"}.items() <= got.items()
    assert got["Authorization"] == "Basic c2hvcDpwQHNzL3dvcmQ="
    assert (got["Content-Length"], got["Shardq-Attempt"]) == ("7", "1")
    assert not {"odd name", "text"} & got.keys()
    wait_until(lambda: left(feeding) == 0, "nothing is left here")


IDS = ("письмо-7", "a", "a ", "50%", "x" * 200)


def test_ids_and_the_options_of_a_route(
    feeding: Engine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (250, 251)]
    monkeypatch.setenv("SHARDQ_SECRET_HOOK_TOKEN", "to+ken#&=")
    monkeypatch.setenv("SHARDQ_SECRET_HOOK_KEYS", " ".join(keys))
    feeding.pause("hooks")
    feeding.forward(
        "hooks",
        to=f"http://127.0.0.1:{endpoint.port}/#method=PUT&connections=2&header.Authorization=Bearer+${{HOOK_TOKEN}}"
        "&header.content-type=text/plain&sign=${HOOK_KEYS}",
    )
    ids = [feeding.push(n, topic="hooks", id=id, headers={"Webhook-Id": "mine"}) for n, id in enumerate(IDS)]
    wait_until(lambda: feeding.stats().ready == len(IDS), "all are ready")
    feeding.resume("hooks")
    wait_until(lambda: left(feeding) == 0, "all are taken")
    requests = endpoint.requests()
    assert {unquote(key): payload for key, (_, _, payload, _) in requests} == {id: n for n, id in enumerate(ids)}
    assert len(requests) == len(IDS)
    for key, (_, _, payload, headers) in requests:
        assert (headers["method"], headers["Authorization"]) == ("PUT", "Bearer to+ken#&=")
        assert (headers["content-type"], headers["webhook-id"]) == ("text/plain", key)
        signed = f"{key}.{headers['webhook-timestamp']}.{payload}".encode()
        made = [hmac.digest(bytes([n]) * 32, signed, "sha256") for n in (250, 251)]
        assert headers["webhook-signature"] == " ".join(f"v1,{base64.b64encode(each).decode()}" for each in made)
    assert "to+ken" not in f"{feeding.stats()!r} {feeding.topology!r} {caplog.text}"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"hold": True}, "no answer to this request within 0.3 s"),
        ({"close": True}, "the connection ended without an answer to this request"),
        ({"status": 504}, "HTTP 504"),
        ({"status": 404}, "HTTP 404"),
    ],
)
def test_a_payload_that_always_fails_is_dead_and_its_neighbours_go_on(
    feeding: Engine, endpoint: Endpoint, payload: dict[str, Any], reason: str
) -> None:
    url = f"http://127.0.0.1:{endpoint.port}/#timeout=0.3&max_attempts=3&outage=wait&backoff=0.1,0.2"
    feeding.pause("hooks")
    feeding.forward("hooks", to=url)
    bad = feeding.push(payload, topic="hooks")
    others = feeding.push_many([Task(n, topic="hooks") for n in range(100)])
    wait_until(lambda: feeding.stats().ready == 101, "all are ready")
    feeding.resume("hooks")
    # the last attempts are made alone
    wait_until(lambda: state_of(feeding, bad) == "dead" and left(feeding) == 1, "it is dead, and the others are taken")
    task = feeding.get(bad)
    assert task is not None
    assert reason in (task.reason or "")
    assert {key for key, _ in endpoint.requests()} == {bad, *others}

    def counted() -> tuple[int, int, int, str]:
        seen = sink_stats(feeding, "hooks")
        return seen.sent, seen.buried, seen.retried, seen.circuit

    wait_until(lambda: counted() == (100, 1, 2, "closed"), "each try beside others has counted")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"status": 503}, "HTTP 503"),
        ({"status": 429}, "HTTP 429"),
        ({"status": 500}, "HTTP 500"),
        ({"status": 302}, "HTTP 302"),
        ({"close": True}, "the connection ended without an answer"),
        (None, "can't be reached"),
    ],
)
def test_with_max_attempts_each_try_counts_also_of_an_endpoint_that_takes_nothing(
    feeding: Engine, endpoint: Endpoint, payload: dict[str, Any] | None, reason: str
) -> None:
    port = free_port() if payload is None else endpoint.port
    feeding.forward("hooks", to=f"http://127.0.0.1:{port}/#timeout=2&max_attempts=3&backoff=0.1,0.2")
    id = feeding.push(payload, topic="hooks")
    wait_until(lambda: state_of(feeding, id) == "dead", "it is dead")
    task = feeding.get(id)
    assert task is not None
    assert reason in (task.reason or "")
    assert len(task.attempts) == 3
    if payload is not None:
        assert [key for key, _ in endpoint.requests()] == [id] * 3
    if payload == {"status": 429}:
        first, second = task.attempts[0].at, task.attempts[1].at
        assert (second - first).total_seconds() >= 1.0, "Retry-After is obeyed"


def test_with_max_attempts_an_outage_costs_those_that_wait_nothing(feeding: Engine, endpoint: Endpoint) -> None:
    """The circuit opens: few are tried, each with an attempt, and none of the rest."""
    endpoint.kill()
    feeding.forward("hooks", to=f"http://127.0.0.1:{endpoint.port}/#max_attempts=1000&backoff=0.1,0.2")
    ids = feeding.push_many([Task(n, topic="hooks") for n in range(2000)])
    wait_until(lambda: sink_stats(feeding, "hooks").circuit != "closed", "it is noticed")
    endpoint.start()
    wait_until(lambda: left(feeding) == 0, "all are taken", timeout=60)
    requests = endpoint.requests()
    assert {key for key, _ in requests} == set(ids)
    later = {key for key, (_, _, _, headers) in requests if headers["Shardq-Attempt"] != "1"}
    assert 0 < len(later) < 500


def test_what_becomes_of_each_answer(feeding: Engine, endpoint: Endpoint) -> None:
    feeding.pause("hooks")
    feeding.forward("hooks", to=f"http://127.0.0.1:{endpoint.port}/")
    fine = feeding.push_many([Task(n, topic="hooks") for n in range(20)])
    refused = feeding.push({"status": 400}, topic="hooks")
    failing = feeding.push({"status": 500, "until": 1}, topic="hooks")
    wait_until(lambda: feeding.stats().ready == 22, "all are ready")
    feeding.resume("hooks")

    def is_over() -> bool:
        # beside others that are taken a failure is the task's own, and counts
        feeding.push(0, topic="hooks")
        return state_of(feeding, failing) == "gone"

    wait_until(is_over, "the other try has come", timeout=60)
    wait_until(lambda: left(feeding) == 1, "one is left", timeout=60)
    task = feeding.get(refused)
    assert task is not None
    assert (task.state, task.reason) == ("dead", "HTTP 400 Bad Request")
    tries = [entry[1] for key, entry in endpoint.requests() if key == failing]
    assert (set(tries[:-1]), tries[-1]) == ({500}, 204)
    assert {state_of(feeding, id) for id in fine} == {"gone"}
    wait_until(lambda: sink_stats(feeding, "hooks").retried == sink_stats(feeding, "hooks").buried == 1, "they count")


def test_a_slow_answer_holds_up_its_own_task_alone(feeding: Engine, endpoint: Endpoint) -> None:
    feeding.forward("hooks", to=f"http://127.0.0.1:{endpoint.port}/#timeout=60")
    held = feeding.push({"hold": True}, topic="hooks")
    wait_until(endpoint.requests, "it is under way")
    feeding.push_many([Task(n, topic="hooks") for n in range(300)])
    wait_until(lambda: left(feeding) == 1, "all others are settled")
    assert state_of(feeding, held) == "leased"
    feeding.push({"release": True}, topic="hooks")
    wait_until(lambda: left(feeding) == 0, "it is settled, too")
    assert len(endpoint.requests()) == 302


def test_a_url_that_is_not_there_and_one_that_asks_to_wait(feeding: Engine, endpoint: Endpoint) -> None:
    feeding.forward("hooks", to=f"http://127.0.0.1:{endpoint.port}/")
    id = feeding.push({"status": 404}, topic="hooks", max_attempts=1)
    wait_until(lambda: "HTTP 404" in sink_stats(feeding, "hooks").error, "it waits")
    assert state_of(feeding, id) in ("ready", "scheduled", "leased")
    assert sink_stats(feeding, "hooks").buried == 0


MEANINGS: dict[type, tuple[int, ...]] = {
    Sent: (200, 201, 204),
    Refused: (400, 410, 413, 422),
    Failed: (404, 408, 409, 500, 501, 502, 504),
    Unsent: (301, 401, 403, 405, 429, 503),
}


@pytest.mark.parametrize(("kind", "statuses"), MEANINGS.items())
def test_the_meaning_of_answers(kind: type, statuses: tuple[int, ...]) -> None:
    assert {type(result_of(status, "", b"", None)) for status in statuses} == {kind}


def test_retry_after() -> None:
    assert result_of(503, "", b"", "12") == Unsent("HTTP 503", 12.0)
    assert result_of(503, "", b"", "Wed, 21 Oct 2015 07:28:00 GMT") == Unsent("HTTP 503", 0.0)
    assert result_of(503, "", b"", "soon") == Unsent("HTTP 503", 0.0)
    later = result_of(429, "", b"", "Wed, 21 Oct 2099 07:28:00 GMT")
    assert isinstance(later, Unsent)
    assert later.again_s > 3600


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("https://", "needs a host"),
        ("https:///path", "needs a host"),
        ("https://h:port/", "write https://HOST:PORT/PATH"),
        ("https://h/a b", "no blanks"),
        (
            "https://h/x#y",
            "an option after the # that is not known; allowed are: timeout, ca, cert, key, check_hostname, method, "
            "connections, max_attempts, outage, backoff, sign, header.NAME",
        ),
        ("https://u:secret#1@h/", "write https://HOST:PORT/PATH"),
        ("https://h/#header.From=ann@secret", "no @ after the #; write %40"),
        ("https://h/#method=GET", "give one of POST, PUT, PATCH"),
        ("https://h/#connections=65", "connections= of an HTTP URL .* from 1 to 64"),
        ("https://h/#outage=fail", "outage= of an HTTP URL .* give outage=wait"),
        ("https://h/#max_attempts=0", "max_attempts= of an HTTP URL .* from 1 to 1000000"),
        ("https://h/#backoff=5,1", "give the first and the longest pause in seconds: backoff=1,3600"),
        ("https://h/#backoff=soon", "give the first and the longest pause in seconds: backoff=1,3600"),
        ("https://h/#sign=secret", "give whsec_ and 24 to 64 bytes in base64"),
        ("https://h/#sign=", "give whsec_ and 24 to 64 bytes in base64"),
        ("https://h/#header.Host=h", "names a header that can't be given; all can but Host, "),
        ("https://h/#header.X=%0asecret", "give text of ASCII, in one line"),
        ("https://token@h/#header.authorization=secret", "Authorization not beside a login"),
    ],
)
def test_wrong_urls(to: str, text: str) -> None:
    with pytest.raises(BadInput, match=text) as caught:
        check(Route(to))
    assert "secret" not in str(caught.value)
