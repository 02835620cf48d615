"""serve: it starts, serves, dispatches and ends, in one process and in several; and what it refuses. token."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner, Result

from cluster.server import Server
from shardq import Engine
from shardq.cli.app import app
from shardq.cli.options import Given
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.http.tokens import Tokens
from tests.cli.shell import LONGEST_S, SCRIPT, Shell, own
from tests.support.slow_clients import SOON_S, ended, place_of, slow, usual_s
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until


def place_in(said: str) -> str:
    """The address in what the command printed."""
    return said.split(" at ")[1].split(",")[0].strip().rstrip("/")


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_it_serves_until_it_is_told_to_end(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("serve", "--port", "0")
    said = told(process)
    assert said.startswith(f"serving {engine.name!r} at http://127.0.0.1:")
    with httpx.Client(timeout=LONGEST_S) as browser:
        page = browser.get(place_in(said))
        assert "no dispatcher runs" in page.text
        with browser.stream("GET", str(page.url.join("/live/overview"))) as stream:
            assert any(line.startswith("data: ") for line in stream.iter_lines())
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, out, err) == (130, "", f"{NO_DISPATCHER}\nCtrl-C ends it\nstopped\n")


def test_it_ends_while_a_page_waits_for_a_silent_server(shardq: Shell, own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=2):
        pass
    shardq.environment["SHARDQ_URL"] = own_server.url
    process = shardq.start("serve", "--port", "0")
    url = httpx.URL(place_in(told(process)))
    own_server.pause()
    try:
        with socket.create_connection((url.host, url.port or 80), timeout=LONGEST_S) as page:
            page.sendall(f"GET /tasks HTTP/1.1\r\nHost: {url.host}\r\n\r\n".encode())
            for _ in range(5):  # what was sent before these was read before them
                assert httpx.get(url.join("/livez")).text == "ok\n"
            process.send_signal(signal.SIGINT)
            assert page.recv(1 << 16).startswith(b"HTTP/1.1 503")
            out, err = process.communicate(timeout=LONGEST_S)
    finally:
        own_server.resume()
    assert (process.returncode, out) == (130, "")
    assert own(err).endswith("Ctrl-C ends it\nstopped\n")


def test_it_ends_with_0_when_it_is_told_to_and_logs_nothing_but_json(
    shardq: Shell, engine: Engine, tmp_path: Path
) -> None:
    tokens = write_tokens(tmp_path / "tokens", ops=("ops-secret", "operator", "*"))
    process = shardq.start("serve", "--port", "0", "--log", "json", "--tokens", str(tokens), "--access-log")
    place = place_in(told(process))
    for request in (b"\x00\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"):
        with socket.create_connection(place_of(place), timeout=LONGEST_S) as client:
            client.sendall(request)
            assert client.recv(100)
    assert httpx.post(f"{place}/sign-in", data={"token": "wrong-wrong-wrong-wrong"}).status_code == 403
    bearer = {"Authorization": "Bearer ops-secret", "X-Request-Id": "r-1"}
    assert httpx.get(f"{place}/v1/health?max_dead=1", headers=bearer).status_code == 200
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, out) == (0, "")
    said = [json.loads(line) for line in err.splitlines()]
    assert [each["logger"] for each in said if each["level"] == "warning"] == ["shardq.http"]
    (line,) = [each for each in said if each["logger"] == "shardq.http.access"]
    assert (line["path"], line["status"], line["token"], line["request_id"]) == ("/v1/health", 200, "ops", "r-1")
    own = [each["message"] for each in said if each["logger"] == "shardq.cli"]
    assert own == [NO_DISPATCHER, "Ctrl-C ends it", "stopped"]
    assert "ops-secret" not in err


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ([], "127.0.0.1"),
        (["--behind-tls"], "192.0.2.7"),
        (["--behind-tls", "--trusted-proxy", "10.0.0.5"], "127.0.0.1"),
        (["--trusted-proxy", "10.0.0.5, 127.0.0.0/8"], "192.0.2.7"),
    ],
)
def test_a_client_behind_a_proxy(
    shardq: Shell, engine: Engine, tmp_path: Path, options: list[str], address: str
) -> None:
    tokens = write_tokens(tmp_path / "tokens", ops=("ops-secret", "operator", "*"))
    process = shardq.start("serve", "--port", "0", "--tokens", str(tokens), *options)
    place = place_in(told(process))
    forwarded = {"X-Forwarded-For": "192.0.2.7"}
    assert httpx.post(f"{place}/sign-in", data={"token": "wrong"}, headers=forwarded).status_code == 403
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LONGEST_S)
    assert f"a wrong token in the form of the dashboard from {address}, 1 of it by now" in err


def test_it_dispatches(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("serve", "--port", "0", "--dispatch")
    place = place_in(told(process))
    id = httpx.post(f"{place}/v1/tasks", json={"payload": 1, "topic": "mail"}).json()["id"]
    wait_until(lambda: httpx.get(f"{place}/v1/task", params={"id": id}).json()["state"] == "ready", "it is dispatched")
    assert httpx.get(f"{place}/readyz").text.startswith("ok\n")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, own(err)) == (0, "Ctrl-C ends it\nstopped\n")
    assert not any(member.kind == "dispatcher" for member in engine.fleet()), "it has signed off"


def test_it_says_that_nobody_dispatches(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("serve", "--port", "0")
    place = place_in(told(process))
    wait_until(lambda: NO_DISPATCHER in httpx.get(f"{place}/readyz").text, "the probe tells it")
    assert httpx.get(f"{place}/readyz").status_code == 200, "pushes are stored all the same"
    process.send_signal(signal.SIGTERM)
    assert NO_DISPATCHER in process.communicate(timeout=LONGEST_S)[1]


@pytest.mark.slow
def test_several_processes_serve_one_port_and_one_that_is_killed_is_restarted(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("serve", "--port", "0", "--processes", "2")
    place = place_in(told(process))
    parent = psutil.Process(process.pid)
    wait_until(lambda: len(parent.children()) == 2, "both run")
    stored: set[str] = set()

    def push(number: int) -> bool:
        try:
            answer = httpx.post(f"{place}/v1/tasks", json={"payload": 1, "id": f"n-{number}", "delay": 60})
        except httpx.HTTPError:
            return False
        stored.add(answer.json()["id"])
        return answer.status_code in (200, 201)

    def is_replaced(killed: psutil.Process) -> bool:
        return len({each.pid for each in parent.children()} - {killed.pid}) == 2

    for number in range(60):
        wait_until(partial(push, number), "it is stored")
        if number % 20 == 10:
            killed = parent.children()[0]
            killed.kill()
            wait_until(partial(is_replaced, killed), "another runs in its place")
    assert len(stored) == engine.stats().scheduled == 60
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0


@pytest.mark.slow
def test_pushes_are_spooled_while_no_server_is_there(
    shardq: Shell, own_server: Server, name: str, tmp_path: Path
) -> None:
    with Engine(own_server.url, name=name, shards=2) as engine:
        shardq.environment["SHARDQ_URL"] = own_server.url
        process = shardq.start("serve", "--port", "0", "--spool", str(tmp_path / "spool"))
        place = place_in(told(process))
        assert httpx.post(f"{place}/v1/tasks", json={"payload": 1, "delay": 60}).status_code == 201
        own_server.stop()
        answer = httpx.post(f"{place}/v1/tasks", json={"payload": 2, "id": "late", "delay": 60}, timeout=LONGEST_S)
        assert (answer.status_code, answer.json()["outcome"]) == (202, "spooled")
        own_server.start()
        wait_until(lambda: engine.get("late"), "it is stored", timeout=LONGEST_S)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LONGEST_S)


@pytest.mark.slow
@pytest.mark.parametrize("from_the_start", [True, False], ids=["from the start", "later"])
def test_slow_connections_where_256_files_may_be_open(shardq: Shell, engine: Engine, from_the_start: bool) -> None:
    words = ["sh", "-c", f'ulimit -n {256 if from_the_start else 1024}; exec "$@"', "sh", str(SCRIPT), "serve"]
    process = subprocess.Popen(
        [*words, "--port", "0", "--json", "--log", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=shardq.environment,
    )
    try:
        place = json.loads(told(process))["url"].rstrip("/")
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (256, 256))
        with ExitStack() as stack:
            clients = slow(stack, place, 400)
            assert usual_s(place, ("/livez", "/v1")) < SOON_S
            before, began = psutil.Process(process.pid).cpu_times(), time.monotonic()
            wait_until(lambda: all(map(ended, clients)), "none is held for long", timeout=30)
            now = psutil.Process(process.pid).cpu_times()
            used = now.user + now.system - before.user - before.system
            assert used < 0.5 * (time.monotonic() - began), "it burns no core"
            assert usual_s(place, ("/livez", "/v1")) < SOON_S
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LONGEST_S)
    finally:
        process.kill()
        process.communicate()
    said = [json.loads(line)["message"] for line in err.splitlines()]
    assert len([text for text in said if "Too many open files" in text]) == (0 if from_the_start else 1), said


@pytest.fixture
def run(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in this process."""
    monkeypatch.setenv("SHARDQ_URL", url)
    monkeypatch.setenv("SHARDQ_NAME", name)
    for place in ("session.set_up_logging", "serve.set_up_root"):
        monkeypatch.setattr(f"shardq.cli.{place}", lambda **_: None)  # they are of the whole process

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, words, obj=Given())

    return run


def test_what_is_not_possible_is_said(run: Callable[..., Result], engine: Engine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        why = (
            f"can't listen at 127.0.0.1:{port}: Address already in use; give another host, or port (0 takes a free one)"
        )
        assert str(run("serve", "--port", port).exception) == why
    for words in (["--host", "0.0.0.0"], ["--host", "192.0.2.1"], ["--behind-tls"], ["--allow-host", "x.example"]):
        refused = run("serve", "--port", "0", *words)
        assert "give --tokens FILE" in str(refused.exception), words
    absent = str(tmp_path / "absent")
    assert "can't be read: No such file" in str(run("serve", "--port", "0", "--tokens", absent).exception)
    (tmp_path / "wrong").write_text("shop producer * a-secret")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDQ_TOKENS", str(tmp_path / "wrong"))
        assert "is not NAME ROLES TOPICS sha256:HASH" in str(run("serve", "--port", "0").exception)
    for proxy in ("*", "proxy.example.org", "10.0.0.0/33", ""):
        refused = run("serve", "--trusted-proxy", proxy)
        assert refused.exit_code == 2
        assert "does not appear to be an IPv4 or IPv6 network" in " ".join(refused.output.split())


def test_it_is_opened_in_a_browser(run: Callable[..., Result], engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr("shardq.cli.serving.Ending.wait", lambda _: True)
    monkeypatch.setattr("click.launch", started.append)
    told = json.loads(run("serve", "--port", "0", "--open", "--json", "--read-only").stdout)
    assert told == {"url": started[0], "read_only": True, "processes": 1}


def test_far_tasks_wait_in_its_database(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    process = shardq.start("serve", "--port", "0", "--far", str(tmp_path / "far.db"))
    place = place_in(told(process))
    id = httpx.post(f"{place}/v1/tasks", json={"payload": 1, "delay": "30d"}, timeout=LONGEST_S).json()["id"]
    assert httpx.get(f"{place}/v1/task", params={"id": id}).json()["state"] == "scheduled"
    assert engine.stats().scheduled == 0
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0


def test_an_engine_that_is_not_there(run: Callable[..., Result], engine: Engine) -> None:
    assert "there is no engine named 'misspelt'" in str(run("serve", "--name", "misspelt").exception)


def test_what_is_not_installed_is_named(
    run: Callable[..., Result], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "shardq.http.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    why = str(run("serve").exception)
    assert why.endswith("serving needs Starlette, uvicorn, httptools and Jinja: pip install 'shardq[serve]'")


def test_a_token_is_shown_once_and_lets_in(run: Callable[..., Result], tmp_path: Path) -> None:
    made = json.loads(run("token", "shop", "--role", "producer,viewer", "--topic", "order-*", "--json").stdout)
    path = tmp_path / "tokens"
    path.write_text(f"# of the shop\n\n{made['line']}\n")
    caller = Tokens(path).find(made["secret"])
    assert caller is not None
    assert (caller.name, sorted(caller.roles), caller.topics) == ("shop", ["producer", "viewer"], ("order-*",))
    assert made["secret"] not in made["line"]
    other = run("token", "shop", "--role", "producer")
    assert other.stdout.startswith("shop producer * sha256:")
    assert "shardq_" in other.stderr
    assert "shardq_" not in other.stdout
    for wrong in (["--role", "king"], ["--role", ","], ["--role", "viewer", "--topic", "a b"]):
        assert run("token", "shop", *wrong).exception, wrong
    assert run("token", "a b", "--role", "viewer").exception
