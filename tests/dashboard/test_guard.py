"""Who sees the dashboard and who may change something: tokens, hosts, origins, forms, and what browsers are told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount

from shardq import Engine
from shardq.dashboard.web import Form, access_of, action, done, page
from shardq.errors import InvalidOption
from shardq.http import Door, app, guard
from shardq.http.server import served
from tests.dashboard.browsing import Browser, browsing
from tests.dashboard.conftest import TOKEN
from tests.support.slow_clients import place_of
from tests.support.waiting import wait_until

BEARER = {"Authorization": f"Bearer {TOKEN}"}


def test_nobody_sees_a_page_without_the_token(guarded: Browser) -> None:
    for path in ("/", "/nowhere", "/topics"):
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert "asks for its token" in answer.text
        assert "scheduled" not in answer.text
        assert guarded.get(f"{path}?token={TOKEN}").status_code == 401, "no address takes it"
    assert guarded.sign_in("wrong-wrong-wrong-wrong").status_code == 403
    assert guarded.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert guarded.get("/static/style.css").status_code == 200


def test_the_form_posts_the_token_and_leads_back(guarded: Browser) -> None:
    assert guarded.get("/sign-in").status_code == 200
    page = guarded.get("/tasks?topic=mail").text
    assert 'method="post" action="/sign-in"' in page
    assert 'name="back" value="/tasks?topic=mail"' in page
    answer = guarded.sign_in(TOKEN, back="/?x=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
    said = next(each for each in answer.headers.get_list("set-cookie") if "_form" not in each)
    assert "HttpOnly" in said
    assert "SameSite=Strict" in said
    assert "Secure" not in said
    assert guarded.get("/").status_code == 200
    assert guarded.get("/sign-in").headers["location"] == "/#", "it takes a token out of the address"


def test_cookies_are_secure_behind_tls(engine: Engine, tokens: Path) -> None:
    with browsing(app(engine, tokens=tokens, behind_tls=True)) as client:
        cookies = [
            *client.get("/").headers.get_list("set-cookie"),
            *client.sign_in(TOKEN).headers.get_list("set-cookie"),
        ]
        assert len(cookies) == 2
        assert all("; Secure" in each for each in cookies)


def test_wrong_tokens_are_logged_and_slowed_down(
    guarded: Browser, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "FIRST_S", 30.0)
    for _ in range(guard.FREE):
        assert guarded.sign_in("wrong-wrong-wrong-wrong").status_code == 403
    said = [record.getMessage() for record in caplog.records if record.name == "shardq.http"]
    assert said == [
        f"a wrong token in the form of the dashboard from 127.0.0.1, {n + 1} of it by now" for n in range(guard.FREE)
    ]
    answer = guarded.sign_in(TOKEN)
    assert answer.status_code == 429, "also the right one is not looked at"
    assert 0 < int(answer.headers["retry-after"]) <= 30
    assert "Too many wrong tokens came from 127.0.0.1" in answer.text
    assert guarded.get("/", headers=BEARER).status_code == 200, "programs behind the same address go on"
    monkeypatch.setattr(guard, "FIRST_S", 0.0)
    assert guarded.sign_in(TOKEN).status_code == 303
    monkeypatch.setattr(guard, "FIRST_S", 30.0)
    assert guarded.get("/").status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"token=" + b"a" * (256 * 1024 - 6), b"token=\xff\xfe", b"&".join(b"f%d=x" % n for n in range(2000)), b"&" * 2500],
    ids=["256 KiB", "broken UTF-8", "2,000 fields", "2,501 fields"],
)
def test_a_sign_in_that_is_no_form_of_ours_is_refused_in_words(
    guarded: Browser, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    answer = guarded.post("/sign-in", content=body)
    assert answer.status_code == 400
    assert "sends" in answer.text or "send" in answer.text
    assert caplog.records == []


def test_a_browser_that_leaves_while_it_signs_in_is_no_fault(
    guarded: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with socket.create_connection(place_of(str(guarded.base_url).rstrip("/")), timeout=60) as client:
            client.sendall(b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\ntoken=")
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
    wait_until(lambda: guarded.get("/livez").text == "ok\n", "it serves")
    assert caplog.records == []


@pytest.mark.parametrize("proxies", [(), ("10.0.0.0/8",), ("127.0.0.0/8",)])
def test_a_proxy_that_nobody_named_is_not_believed(
    engine: Engine,
    tokens: Path,
    proxies: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "FIRST_S", 30.0)
    with served(app(engine, tokens=tokens), "127.0.0.1", proxies=proxies) as place:
        for n in range(guard.FREE + 1):
            headers = {"X-Forwarded-For": f"192.0.2.{n}", "X-Forwarded-Proto": "https"}
            answer = httpx.post(f"{place}/sign-in", data={"token": "wrong-wrong-wrong-wrong"}, headers=headers)
    named = proxies == ("127.0.0.0/8",)
    assert answer.status_code == (403 if named else 429)
    said = [record.getMessage().split(",")[0] for record in caplog.records if record.name == "shardq.http"]
    assert said[0] == f"a wrong token in the form of the dashboard from {'192.0.2.0' if named else '127.0.0.1'}"


def test_only_the_addresses_of_probes_and_files_are_free(guarded: Browser) -> None:
    wait_until(lambda: guarded.get("/readyz").status_code == 200, "it has connected")
    for path in ("/livez", "/readyz", "/static/style.css"):
        assert guarded.get(path).status_code == guarded.head(path).status_code == 200
    for method, path in (
        ("GET", "//livez"),
        ("GET", "/\\livez"),
        ("GET", "/livez/"),
        ("POST", "/livez"),
        ("GET", "/static/nothing.css"),
        ("GET", "//static/style.css"),
        ("GET", "/static/../topics"),
        ("POST", "/static/style.css"),
    ):
        answer = guarded.request(method, "/", extensions={"target": path.encode()})
        assert answer.status_code == 401, (method, path)
        assert "asks for its token" in answer.text
        assert "style.css," not in answer.text


def test_an_address_is_never_that_of_another_host(guarded: Browser) -> None:
    for path in ("//evil.example/x", "/\\evil.example/x", "///evil.example/x"):

        def ask(target: str) -> httpx.Response:
            return guarded.get("/", extensions={"target": target.encode()})

        assert 'name="back" value="/evil.example/x"' in ask(path).text
        assert guarded.sign_in(TOKEN, back=path).headers["location"] == "/evil.example/x"
        guarded.cookies.clear()


def test_a_program_shows_the_token_itself(guarded: Browser) -> None:
    assert guarded.get("/", headers=BEARER).status_code == 200
    assert guarded.get("/").status_code == 401


def test_only_an_engine_has_a_dashboard() -> None:
    with pytest.raises(InvalidOption, match="give an Engine or an AsyncEngine"):
        app("redis://127.0.0.1")  # type: ignore[arg-type]


def test_every_answer_says_what_browsers_may_do(client: Browser) -> None:
    for path in ("/", "/nowhere", "/static/style.css"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
    assert client.get("/").headers["cache-control"] == "no-store"


def test_a_name_that_another_site_points_here_is_refused(engine: Engine) -> None:
    with browsing(app(engine, hosts=["Queue.example.org"])) as client:

        def status(host: str) -> int:
            return client.get("/static/icon.svg", headers={"Host": host}).status_code

        for host in ("localhost:8787", "127.0.0.1:8787", "[::1]:8787", "LOCALHOST", "queue.example.org"):
            assert status(host) == 200, host
        for host in ("evil.example", "evil.example:8787", "127.0.0.1.evil.example", "", "[", "x@evil.example"):
            assert status(host) in (400, 403), host


@pytest.fixture
def changed() -> list[str]:
    return []


@pytest.fixture
def trial(engine: Engine, tokens: Path, changed: list[str]) -> Iterator[Browser]:
    """A browser on a dashboard with one more page, whose form adds to ``changed``."""
    with browsing(_with_form(app(engine, tokens=tokens), changed)) as client:
        client.sign_in(TOKEN)
        yield client


def _with_form(door: Door, changed: list[str]) -> Door:
    async def form(request: Request) -> Response:
        return PlainTextResponse(f'name="csrf" value="{access_of(request).csrf}"')

    async def change(request: Request, form: Form) -> Response:
        changed.append(form.text("word"))
        return done(request, "added <it>", back="/")

    door.pages.router.routes[:0] = [page("/trial", form), action("/trial", change)]
    return door


def test_a_form_of_a_page_is_taken_and_the_next_page_tells_once(trial: Browser, changed: list[str]) -> None:
    assert "added &lt;it&gt;" in trial.submit("/trial", "/trial", word=" one ").text
    assert changed == ["one"]
    assert "added" not in trial.get("/").text


def test_a_form_that_no_page_gave_is_refused(trial: Browser, changed: list[str]) -> None:
    here = {"Origin": str(trial.base_url).rstrip("/")}
    csrf = trial.form_of("/trial")
    for fields in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ü"}):
        answer = trial.post("/trial", data=fields, headers=here)
        assert answer.status_code == 403
        assert "nothing was changed" in answer.text
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://["):
        answer = trial.post("/trial", data={"csrf": csrf}, headers={"Origin": origin})
        assert answer.status_code == 403
        assert "another site" in answer.text
    trial.cookies.delete("shardq_form")
    assert trial.post("/trial", data={"csrf": csrf}, headers=here).status_code == 403
    assert trial.post("/trial", content=b"\xff", headers=here).status_code == 400
    assert trial.post("/trial", content=b"a" * 300_000, headers=here).status_code == 400
    assert changed == []
    assert trial.post("/trial", data={"word": "two"}, headers=BEARER).status_code == 303
    assert changed == ["two"]


def test_what_stops_work_asks_once(engine: Engine, client: Browser) -> None:
    id = engine.push("x", delay=3600, topic="mail")
    for path, fields, question in (
        ("/topics/pause", {"topic": "mail", "from": "one"}, "Pause mail, over the whole fleet?"),
        ("/tasks/cancel", {"id": id}, f"Cancel the task {id}?"),
    ):
        asked = client.submit("/topics", path, **fields)
        assert asked.status_code == 200
        assert question in asked.text
        assert all(f'name="{name}" value="{value}"' in asked.text for name, value in fields.items())
        assert 'href="/">No' in asked.text
        assert engine.get(id) is not None
        assert not engine.stats().topics["mail"].paused
    assert "mail is paused" in client.submit("/topics", "/topics/pause", topic="mail", sure="yes").text
    assert "was cancelled" in client.submit("/topics", "/tasks/cancel", id=id, sure="yes").text


def test_nothing_is_changed_read_only(engine: Engine, changed: list[str]) -> None:
    with browsing(_with_form(app(engine, read_only=True), changed)) as client:
        answer = client.submit("/trial", "/trial", word="one")
        assert answer.status_code == 403
        assert "read-only" in answer.text
        assert "read-only" in client.get("/").text
    assert changed == []


def test_other_methods_are_refused_in_words(client: Browser) -> None:
    answer = client.put("/")
    assert answer.status_code == 405
    assert "PUT is not for this address." in answer.text


def test_the_dashboard_works_under_a_prefix(engine: Engine, tokens: Path) -> None:
    site = Starlette(routes=[Mount("/ops/queue", app(engine, tokens=tokens))])
    with browsing(site, prefix="/ops/queue") as client:
        answer = client.sign_in(TOKEN)
        assert answer.headers["location"] == "/ops/queue/"
        text = client.get("/").text
        assert 'href="/ops/queue/topics"' in text
        assert 'href="/ops/queue/static/style.css?' in text
        assert {cookie.path for cookie in client.cookies.jar} == {"/ops/queue/"}
        assert client.get("/nowhere").status_code == 404
