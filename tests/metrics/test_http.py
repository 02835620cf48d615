"""Probes: a process that starts, serves, meets an outage, and stops; and addresses that can't be had."""

from __future__ import annotations

import socket
import sys
import time

import pytest

import shardq
from bench.consuming import working
from cluster.server import Server
from shardq import Delivery, Engine
from shardq.engine.access import EngineAccess
from shardq.errors import InvalidOption
from shardq.metrics import http
from shardq.metrics.http import Address
from tests.metrics.scraping import got, parsed, total
from tests.support.waiting import wait_until

ANYWHERE = "127.0.0.1:0"


@pytest.fixture
def url(single: Server) -> str:
    """What a probe answers does not depend on nodes."""
    return single.url


def test_pollers_are_ready_when_they_run(url: str, name: str) -> None:
    engine = Engine(url, name=name, shards=4)
    with shardq.metrics.serve(engine, ANYWHERE) as server:
        assert got(f"{server.url}/livez") == (200, "ok\n")
        assert got(f"{server.url}/readyz")[0] == 503
        engine.open()
        assert got(f"{server.url}/readyz") == (503, "no pollers run: they are starting, or stopping\n")
        engine.start()
        wait_until(lambda: got(f"{server.url}/readyz") == (200, "ok\n"), "it is ready")
        assert got(f"{server.url}/readyz", "HEAD") == (200, "")
        seen = parsed(got(f"{server.url}/metrics?format=any")[1])
        assert total(seen, "shardq_up", engine=name) == 1
        server.stopping()
        assert got(f"{server.url}/readyz") == (503, "stopping\n")
        assert got(f"{server.url}/livez")[0] == 200
        engine.close()
    assert got(f"{server.url}/livez") == (0, "")


def test_a_worker_is_ready_when_it_runs(url: str, name: str) -> None:
    with Engine(url, name=name, shards=4) as engine, shardq.metrics.serve(engine, ANYWHERE, duty="worker") as server:
        worker = engine.worker()

        @worker.on("")
        def handle(delivery: Delivery) -> None: ...

        assert got(f"{server.url}/readyz") == (503, "no worker runs: it is starting, or stopping\n")
        with working(worker):
            wait_until(lambda: got(f"{server.url}/readyz") == (200, "ok\n"), "it is ready")
        assert got(f"{server.url}/readyz")[0] == 503
        assert got(f"{server.url}/livez") == (200, "ok\n")


def test_an_answer_that_fails_is_told_and_logged(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> list[str]:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("shardq.metrics.http.not_alive", broken)
    with Engine(url, name=name, shards=4) as engine, shardq.metrics.serve(engine, ANYWHERE) as server:
        assert got(f"{server.url}/livez") == (500, "RuntimeError; see the log of this process\n")
        assert got(f"{server.url}/readyz")[0] == 503, "the others answer"
    (said,) = [record for record in caplog.records if record.name == "shardq.metrics"]
    assert said.getMessage() == "no answer for /livez: a fault of ours"
    assert said.exc_info


def test_an_outage_is_no_reason_to_restart(own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=2) as engine, shardq.metrics.serve(engine, ANYWHERE) as server:
        engine.start()
        wait_until(lambda: got(f"{server.url}/readyz")[0] == 200, "it is ready")
        own_server.pause()
        try:
            # rung, so that pollers do not sleep through the outage
            for poller in list(EngineAccess(engine).running.dispatcher._pollers.values()):  # type: ignore[union-attr]
                poller.rung(None)
            wait_until(lambda: got(f"{server.url}/readyz")[0] == 503, "it is not ready")
            assert "can't be dispatched" in got(f"{server.url}/readyz")[1]
            assert got(f"{server.url}/livez") == (200, "ok\n")
        finally:
            own_server.resume()
        wait_until(lambda: got(f"{server.url}/readyz")[0] == 200, "it is ready again", timeout=60)


@pytest.mark.parametrize("kind", ["pause", "kill"])
def test_a_worker_tells_at_once_that_its_server_is_away_and_back(own_server: Server, name: str, kind: str) -> None:
    with (
        Engine(own_server.url, name=name, shards=2) as engine,
        shardq.metrics.serve(engine, ANYWHERE, duty="worker") as server,
    ):
        worker = engine.worker()
        worker.on("")(print)
        with working(worker):
            wait_until(lambda: got(f"{server.url}/readyz") == (200, "ok\n"), "it is ready")
            own_server.pause() if kind == "pause" else own_server.kill()
            wait_until(lambda: got(f"{server.url}/readyz")[0] == 503, "it is away", timeout=12)
            assert "a server can't be reached" in got(f"{server.url}/readyz")[1]
            time.sleep(1.0)  # its claims may fail, too
            own_server.resume() if kind == "pause" else own_server.start()
            wait_until(lambda: got(f"{server.url}/readyz") == (200, "ok\n"), "it is back", timeout=5)


def test_a_poller_that_stands_still_is_not_alive(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(url, name=name, shards=2) as engine, shardq.metrics.serve(engine, ANYWHERE) as server:
        engine.start()
        wait_until(lambda: got(f"{server.url}/readyz")[0] == 200, "it is ready")
        monkeypatch.setattr(http, "STUCK_S", 0.0)
        status, why = got(f"{server.url}/livez")
        assert status == 503
        assert why.splitlines()[0].startswith("the poller of shard 0 has completed no step for")


def test_other_paths_and_methods(url: str, name: str) -> None:
    with shardq.metrics.serve(Engine(url, name=name), ANYWHERE) as server:
        assert got(f"{server.url}/") == (404, "/ is not here; there are /livez, /readyz, /metrics\n")
        assert got(f"{server.url}/livez", "POST") == (405, "method not allowed; GET /livez, /readyz, /metrics\n")


def test_without_prometheus_client(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with shardq.metrics.serve(Engine(url, name=name), ANYWHERE) as server:
        assert got(f"{server.url}/metrics") == (
            501,
            "/metrics needs prometheus-client: pip install 'shardq[metrics]'\n",
        )
        assert got(f"{server.url}/livez") == (200, "ok\n")


@pytest.mark.parametrize("text", ["", "9100", ":9100", "localhost", "localhost:", "localhost:x", "a:65536", "::1:9100"])
def test_what_is_no_address(url: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=r"is no HOST:PORT; write 127\.0\.0\.1:9100"):
        Address.parsed(text)


def test_an_address_that_is_taken(url: str, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(InvalidOption, match=f"can't listen at {where}: Address already in use; give another"):
            shardq.metrics.serve(Engine(url, name=name), where)
