"""The web service, run by the server it is for. Each push that was answered is stored or handled."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from cluster.server import Server
from shardq import Engine
from tests.support.programs import ENDS_S, Program
from tests.support.states import FAR_S

FOLDER = Path(__file__).parent

Serve = Callable[..., Program]


@pytest.fixture
def serve(own_server: Server) -> Iterator[Serve]:
    """Runs a module on a server of this test's own."""
    programs: list[Program] = []

    def begin(module: str, *words: str) -> Program:
        variables = {"SHARDQ_URL": own_server.url, "PYTHONPATH": str(FOLDER)}
        programs.append(Program("-m", module, *words, variables=variables, logs=True))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


def listening(program: Program) -> httpx.Client:
    """A client of the address that its log tells."""
    return httpx.Client(base_url=program.matching(r"http://127\.0\.0\.1:\d+")[0], timeout=ENDS_S, trust_env=False)


def stored(server: Server, name: str, ids: list[str]) -> Counter[str]:
    """How many of these are in each state."""
    with Engine(server.url, name=name) as engine:
        return Counter(task.state if (task := engine.get(id)) else "gone" for id in ids)


def is_soon_told_that_redis_is_away(client: httpx.Client, server: Server) -> None:
    """By default a request would wait for half a minute."""
    server.pause()
    try:
        answer = client.post("/reminders", json={"text": "lost", "delay": FAR_S}, timeout=20)
    finally:
        server.resume()
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "5"


def test_fastapi_on_two_processes(serve: Serve, own_server: Server) -> None:
    server = serve("uvicorn", "fastapi_service:app", "--port", "0", "--workers", "2")
    with listening(server) as client:
        for _ in range(2):
            server.matching("Application startup complete")
        later = [client.post("/reminders", json={"text": "later", "delay": FAR_S}).json()["id"] for _ in range(20)]
        moved = f"/reminders/{later[0]}"
        assert client.patch(moved, params={"delay": 2 * FAR_S}).json() == {"outcome": "moved"}
        assert client.get(moved).json()["state"] == "scheduled"
        assert client.delete(moved).json() == {"outcome": "cancelled"}
        assert client.delete(moved).status_code == 409
        assert client.get(moved).status_code == 404
        wrong = client.post("/reminders", json={"text": "tea", "delay": -1})
        assert wrong.status_code == 422
        assert "delay" in wrong.json()["detail"]
        missing = client.post("/reminders", json={"text": "tea"})
        assert (missing.status_code, "delay" in missing.text) == (422, True)
        is_soon_told_that_redis_is_away(client, own_server)

        pollers = serve("shardq", "run", "--name", "example-fastapi", "--quiet")
        worker = serve("shardq", "work", "fastapi_service:engine")
        assert client.post("/reminders", json={"text": "tea", "delay": 0.2}).status_code == 201
        worker.until("reminder: tea")
    for program in (worker, pollers, server):
        program.terminate()
        program.ends_well(-signal.SIGTERM)
    assert stored(own_server, "example-fastapi", later) == {"scheduled": 19, "gone": 1}
