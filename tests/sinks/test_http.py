"""A topic that is forwarded to an HTTP endpoint: what is posted, what each answer means, and a killed endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.ports import free_port
from shardq import BadInput, Engine, Task
from shardq.layout.topology import Route
from shardq.sinks import Failed, Refused, Sent, Unsent
from shardq.sinks.http import result_of
from shardq.sinks.registry import check
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
    monkeypatch.setenv("HOOK_PASSWORD", "p@ss/word")
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
    assert (task.state, task.reason) == ("dead", "HTTP 400 Bad Request: this is why")
    tries = [entry[1] for key, entry in endpoint.requests() if key == failing]
    assert (set(tries[:-1]), tries[-1]) == ({500}, 204)
    assert {state_of(feeding, id) for id in fine} == {"gone"}
    seen = sink_stats(feeding, "hooks")
    assert (seen.retried, seen.buried) == (1, 1)


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


def test_an_endpoint_that_is_killed_under_load(feeding: Engine, endpoint: Endpoint) -> None:
    feeding.forward("hooks", to=f"http://127.0.0.1:{endpoint.port}/")
    ids: list[str] = []
    for _ in range(2):
        ids += feeding.push_many([Task(n, topic="hooks", max_attempts=1) for n in range(200)])
        wait_until(lambda: len(endpoint.requests()) > len(ids) - 150, "some arrive")  # noqa: B023  called at once
        endpoint.kill()
        wait_until(lambda: sink_stats(feeding, "hooks").circuit != "closed" or left(feeding) == 0, "it is noticed")
        endpoint.start()
    wait_until(lambda: left(feeding) == 0, "nothing is left here", timeout=60)
    assert {key for key, _ in endpoint.requests()} == set(ids)
    assert sink_stats(feeding, "hooks").buried == 0


def test_a_url_that_is_not_there_and_one_that_asks_to_wait(feeding: Engine, endpoint: Endpoint) -> None:
    feeding.forward("hooks", to=f"http://127.0.0.1:{endpoint.port}/")
    id = feeding.push({"status": 404}, topic="hooks", max_attempts=1)
    wait_until(lambda: "HTTP 404" in sink_stats(feeding, "hooks").error, "it waits")
    assert state_of(feeding, id) in ("ready", "scheduled", "leased")
    assert sink_stats(feeding, "hooks").buried == 0


MEANINGS: dict[type, tuple[int, ...]] = {
    Sent: (200, 201, 204),
    Refused: (400, 410, 413, 422),
    Failed: (409, 500, 501),
    Unsent: (301, 401, 403, 404, 405, 408, 429, 502, 503, 504),
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
            "an option after the # that is not known; allowed are: timeout, ca, cert, key, check_hostname",
        ),
        ("https://u:secret#1@h/", "write https://HOST:PORT/PATH"),
    ],
)
def test_wrong_urls(to: str, text: str) -> None:
    with pytest.raises(BadInput, match=text) as caught:
        check(Route(to))
    assert "secret" not in str(caught.value)
