"""The web services, run by the servers they are for. Each push that was answered is stored or handled."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from cluster.server import Server
from shardq import Engine
from tests.examples.flask_service import create_app
from tests.support.programs import ENDS_S, Program
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

FOLDER = Path(__file__).parent
ENOUGH = 300
"""Pushes on each side of a kill."""

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


def test_starlette_in_one_process(serve: Serve, own_server: Server) -> None:
    """On uvloop, as uvicorn takes it where it is installed."""
    server = serve("uvicorn", "starlette_service:app", "--port", "0")
    with listening(server) as client:
        later = [client.post("/reminders", json={"text": "later", "delay": FAR_S}).json()["id"] for _ in range(20)]
        assert client.post("/reminders", json={"text": "tea", "delay": 0.2}).status_code == 201
        server.until("reminder: tea")
        assert client.post("/reminders", json={"text": "tea", "delay": -1}).status_code == 400
        missing = client.post("/reminders", json={"text": "tea"})
        assert (missing.status_code, "`delay`" in missing.text) == (400, True)
        wait_until(lambda: client.get("/reminders").json() == {"scheduled": 20, "leased": 0}, "tea is acked")
        page = client.get("/queue/", headers={"Authorization": "Bearer a long secret of yours"})
        assert "example-starlette" in page.text
        is_soon_told_that_redis_is_away(client, own_server)
    server.terminate()
    lines = server.ends_well(-signal.SIGTERM)  # uvicorn ends by the signal, when it has ended all else
    assert any("Application shutdown complete" in line for line in lines)
    assert stored(own_server, "example-starlette", later) == {"scheduled": 20}


def test_flask_under_gunicorn_that_forks_an_open_engine(serve: Serve, own_server: Server) -> None:
    """A process is killed amid pushes: what was answered is stored."""
    words = ("--preload", "--workers", "2", "--threads", "4", "--bind", "127.0.0.1:0", "--no-control-socket")
    server = serve("gunicorn", *words, "flask_service:create_app()")
    answered: list[str] = []
    over = threading.Event()

    def push(url: httpx.URL) -> None:
        with httpx.Client(base_url=url, timeout=ENDS_S, trust_env=False) as client:
            while not over.is_set():
                try:
                    answer = client.post("/reminders", json={"text": "later", "delay": FAR_S})
                except httpx.TransportError:  # it met the process that was killed: the push may be stored or not
                    continue
                assert answer.status_code == 201
                answered.append(answer.json()["id"])

    with listening(server) as client:
        wait_until(lambda: len(server.children) == 2, "both processes run")
        threads = [threading.Thread(target=push, args=[client.base_url]) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(answered) > ENOUGH, "many are stored")
            killed = server.children[0]
            killed.kill()
            before = len(answered)
            wait_until(
                lambda: len([child for child in server.children if child != killed and child.is_running()]) == 2,
                "another takes its place",
            )
            wait_until(lambda: len(answered) > before + ENOUGH, "it goes on")
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert client.delete(f"/reminders/{answered[0]}").json() == {"outcome": "cancelled"}
        assert client.get(f"/reminders/{answered[1]}").json()["state"] == "scheduled"
        assert client.post("/reminders", json={"text": "tea", "delay": -1}).status_code == 400
        is_soon_told_that_redis_is_away(client, own_server)
    server.terminate()
    server.ends_well()
    assert len(set(answered)) == len(answered)
    assert stored(own_server, "example-flask", answered) == {"scheduled": len(answered) - 1, "gone": 1}


def test_flask_as_its_users_test_it(shardq_engine: Engine) -> None:
    client = create_app(shardq_engine).test_client()
    id = client.post("/reminders", json={"text": "tea", "delay": 60}).get_json()["id"]
    assert client.get(f"/reminders/{id}").get_json()["state"] == "scheduled"
    assert client.delete(f"/reminders/{id}").status_code == 200
    assert client.delete(f"/reminders/{id}").status_code == 409
    assert client.get(f"/reminders/{id}").status_code == 404
    wrongs: list[object] = [{"text": "tea"}, {"delay": 5}, {"text": "tea", "delay": "soon"}, []]
    for wrong in wrongs:
        assert client.post("/reminders", json=wrong).status_code == 400
    missing = client.post("/reminders", json={"text": "tea"})
    assert "`delay`" in missing.get_json()["error"]
