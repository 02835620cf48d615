"""dashboard: it starts, serves, and ends; what it prints of its token; and addresses that can't be had."""

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
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner, Result

from cluster.server import Server
from shardq import Engine
from shardq.cli.app import app
from shardq.cli.options import Given
from tests.cli.shell import LONGEST_S, SCRIPT, Shell
from tests.support.slow_clients import SOON_S, ended, place_of, slow, usual_s
from tests.support.waiting import wait_until


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def signed_in(browser: httpx.Client, said: str) -> httpx.Response:
    """The first page, by the address that the command printed: browsers keep what is behind the # to themselves."""
    place, _, token = said.split(" at ")[1].strip().partition("#token=")
    return browser.post(place, data={"token": token})


def test_it_serves_until_it_is_told_to_end(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("dashboard", "--port", "0")
    said = told(process)
    assert said.startswith(f"dashboard of {engine.name!r} at http://127.0.0.1:")
    with httpx.Client(follow_redirects=True, timeout=LONGEST_S) as browser:
        page = signed_in(browser, said)
        assert "no dispatcher runs" in page.text
        assert page.url.query == b""
        with browser.stream("GET", str(page.url.join("/live/overview"))) as stream:
            assert any(line.startswith("data: ") for line in stream.iter_lines())
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, out, err) == (130, "", "Ctrl-C ends it\nstopped\n")


def test_it_ends_while_a_page_waits_for_a_silent_server(shardq: Shell, own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=2):
        pass
    shardq.environment["SHARDQ_URL"] = own_server.url
    process = shardq.start("dashboard", "--port", "0")
    said = told(process)
    with httpx.Client(follow_redirects=True, timeout=LONGEST_S) as browser:
        url = signed_in(browser, said).url
        cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        own_server.pause()
        try:
            with socket.create_connection((url.host, url.port or 80), timeout=LONGEST_S) as page:
                page.sendall(f"GET /tasks HTTP/1.1\r\nHost: {url.host}\r\nCookie: {cookies}\r\n\r\n".encode())
                for _ in range(5):  # what was sent before these was read before them
                    assert httpx.get(url.join("/livez")).text == "ok\n"
                process.send_signal(signal.SIGINT)
                assert page.recv(1 << 16).startswith(b"HTTP/1.1 503")
                out, err = process.communicate(timeout=LONGEST_S)
        finally:
            own_server.resume()
    assert (process.returncode, out, err) == (130, "", "Ctrl-C ends it\nstopped\n")


def test_it_ends_with_0_when_it_is_told_to_and_logs_nothing_but_json(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("dashboard", "--port", "0", "--log", "json")
    place = told(process).split(" at ")[1].partition("/sign-in")[0]
    for request in (b"\x00\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"):
        with socket.create_connection(place_of(place), timeout=LONGEST_S) as client:
            client.sendall(request)
            assert client.recv(100)
    assert httpx.post(f"{place}/sign-in", data={"token": "wrong-wrong-wrong-wrong"}).status_code == 403
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, out) == (0, "")
    said = [json.loads(line) for line in err.splitlines()]
    warnings = [each["logger"] for each in said if each["level"] != "info"]
    assert warnings == ["shardq.dashboard"]
    assert [each["message"] for each in said if each["level"] == "info"] == ["Ctrl-C ends it", "stopped"]


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ([], "127.0.0.1"),
        (["--behind-tls"], "192.0.2.7"),
        (["--behind-tls", "--trusted-proxy", "10.0.0.5"], "127.0.0.1"),
        (["--trusted-proxy", "10.0.0.5, 127.0.0.0/8"], "192.0.2.7"),
    ],
)
def test_a_client_behind_a_proxy(shardq: Shell, engine: Engine, options: list[str], address: str) -> None:
    process = shardq.start("dashboard", "--port", "0", *options)
    place = told(process).split(" at ")[1].partition("/sign-in")[0]
    forwarded = {"X-Forwarded-For": "192.0.2.7", "Authorization": "Bearer wrong"}
    assert httpx.get(place, headers=forwarded).status_code == 401
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LONGEST_S)
    assert f"a wrong token for the dashboard from {address}, 1 of it by now" in err


@pytest.mark.slow
@pytest.mark.parametrize("from_the_start", [True, False], ids=["from the start", "later"])
def test_slow_connections_where_256_files_may_be_open(shardq: Shell, engine: Engine, from_the_start: bool) -> None:
    words = ["sh", "-c", f'ulimit -n {256 if from_the_start else 1024}; exec "$@"', "sh", str(SCRIPT), "dashboard"]
    process = subprocess.Popen(
        [*words, "--port", "0", "--json", "--log", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=shardq.environment,
    )
    try:
        place = json.loads(told(process))["url"].partition("/sign-in")[0]
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (256, 256))
        with ExitStack() as stack:
            clients = slow(stack, place, 400)
            assert usual_s(place, ("/livez", "/sign-in")) < SOON_S
            before, began = psutil.Process(process.pid).cpu_times(), time.monotonic()
            wait_until(lambda: all(map(ended, clients)), "none is held for long", timeout=30)
            now = psutil.Process(process.pid).cpu_times()
            used = now.user + now.system - before.user - before.system
            assert used < 0.5 * (time.monotonic() - began), "it burns no core"
            assert usual_s(place, ("/livez", "/sign-in")) < SOON_S
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
    for place in ("session.set_up_logging", "dashboard.set_up_root"):
        monkeypatch.setattr(f"shardq.cli.{place}", lambda **_: None)  # they are of the whole process

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, words, obj=Given())

    return run


def test_a_token_that_is_given_is_not_repeated(
    run: Callable[..., Result], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDQ_DASHBOARD_TOKEN", "a-secret-of-this-test")
    monkeypatch.setattr("shardq.cli.serving.Ending.wait", lambda _: True)
    words = ["dashboard", "--port", "0", "--json", "--read-only"]
    done = CliRunner().invoke(app, words, obj=Given())
    told = json.loads(done.stdout)
    assert told["read_only"] is True
    assert "secret" not in done.output
    for words in (["config"], ["config", "--json"]):
        shown = run(*words).output
        assert "dashboard.token" in shown
        assert "secret" not in shown


def test_what_is_not_possible_is_said(run: Callable[..., Result], engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        why = (
            f"can't listen at 127.0.0.1:{port}: Address already in use; give another host, or port (0 takes a free one)"
        )
        assert str(run("dashboard", "--port", port).exception) == why
    why = "a token needs 16 ASCII characters or more; secrets.token_urlsafe() makes one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDQ_DASHBOARD_TOKEN", "short")
        assert str(run("dashboard", "--port", "0").exception) == why
    refused = run("dashboard", "--token", "a-secret-on-the-command-line")
    assert refused.exit_code == 2
    assert "set $SHARDQ_DASHBOARD_TOKEN instead" in refused.output
    for proxy in ("*", "proxy.example.org", "10.0.0.0/33", ""):
        refused = run("dashboard", "--trusted-proxy", proxy)
        assert refused.exit_code == 2
        assert "does not appear to be an IPv4 or IPv6 network" in " ".join(refused.output.split())


def test_no_token_is_in_the_words_that_start_a_browser(
    run: Callable[..., Result], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, str, int]] = []

    def launch(place: str) -> None:
        started.append((place, Path(place).read_text(), Path(place).stat().st_mode))

    monkeypatch.setattr("shardq.cli.serving.Ending.wait", lambda _: True)
    monkeypatch.setattr("click.launch", launch)
    link = run("dashboard", "--port", "0", "--open").output.split(" at ")[1].split()[0]
    ((place, page, mode),) = started
    assert "#token=" in link
    assert link in page
    assert "token" not in place
    assert mode & 0o077 == 0
    assert not Path(place).exists()


def test_an_engine_that_is_not_there(run: Callable[..., Result], engine: Engine) -> None:
    assert "there is no engine named 'misspelt'" in str(run("dashboard", "--name", "misspelt").exception)


def test_what_is_not_installed_is_named(
    run: Callable[..., Result], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "shardq.dashboard.serving", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    why = str(run("dashboard").exception)
    assert why.endswith("the dashboard needs Starlette, uvicorn and Jinja: pip install 'shardq[dashboard]'")
