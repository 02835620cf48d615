"""Stands in front of everything that the door serves: the name of the host, the token, other sites; and, for the pages,
the form that takes the token, and the headers that tell browsers what a page may do. The forms of a page are checked in
``dashboard/web.py``.

The two fronts differ in what sends them requests. Programs call the API: a wrong token is answered at once, because a
program with an old one must not lock out its neighbours behind the same address, and nothing that a page of another
site can send is taken. People open the pages: whoever guesses at the form has to wait.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardq.dashboard import web
from shardq.dashboard.web import FILES, STATIC, access_of, cookie, path_of, refused, root_of
from shardq.errors import InvalidOption
from shardq.http.problems import Refusal
from shardq.http.tokens import ANYBODY, Caller, Tokens

log: logging.Logger = logging.getLogger("shardq.http")

SEED_LENGTH = 16
"""Least length of the seed of a browser's forms."""

SIGN_IN = "/sign-in"
"""The address that takes the token. No other does: addresses end up in the logs of proxies, and in histories."""

SIGN_IN_BYTES, SIGN_IN_FIELDS = 16 * 1024, 16
"""The size of a form that everybody may send: a token, and an address to go back to."""

FREE = 3
"""Wrong tokens that cost no wait: they are typing errors."""

FIRST_S, LONGEST_S = 1.0, 60.0
"""The wait after the next one, which doubles with each, and the longest."""

FORGET_S = 600.0
"""The time without a wrong token after which an address has a clean slate."""

MOST = 1000
"""Addresses that are remembered: the last ones."""


HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": browsers would send "Origin: null" with the forms of our own pages.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))


class Hosts:
    """The names under which this process is reached, where it listens on this machine only."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower() for name in names)

    def wrong(self, server: Sequence[Any] | None, host: str) -> str:
        """Refuses, in a sentence, the names that another site lets point to this machine: its scripts could read all.
        ``server``: where the request came in. ``host``: the header.
        """
        if not server or not is_loopback(server[0]):
            return ""
        name = _host_of(f"//{host}")
        if name in _LOCAL_NAMES or self.has(name):
            return ""
        return (
            f"This listens on this machine only, and is not known as {name!r:.80}. Use localhost or 127.0.0.1; for a "
            "proxy, name the host in app(hosts=[…]) or with --allow-host."
        )

    def has(self, name: str) -> bool:
        return name in self._names


class ApiGuard:
    """In front of the API."""

    def __init__(self, tokens: Tokens | None, hosts: Hosts) -> None:
        self._tokens = tokens
        self._hosts = hosts

    def caller(self, server: Sequence[Any] | None, headers: Mapping[bytes, bytes]) -> Caller:
        """Whoever sends this. Raises Refusal."""
        if reason := self._hosts.wrong(server, headers.get(b"host", b"").decode("latin-1")):
            raise Refusal(403, reason)
        if b"origin" in headers:
            raise Refusal(403, "a page of a browser has sent this; the API is for programs, and answers no page")
        if self._tokens is None:
            return ANYBODY
        shown = bearer_of(headers.get(b"authorization", b"").decode("latin-1"))
        caller = self._tokens.find(shown) if shown else None
        if caller is None:
            what = "this token is not known" if shown else "a token is needed"
            raise Refusal(
                401,
                f"{what}; send Authorization: Bearer SECRET, with a secret that `shardq token` made",
                headers={"WWW-Authenticate": 'Bearer realm="shardq"'},
            )
        return caller


class Attempts:
    """Counts the wrong tokens of each address. While one has to wait, no token of it is looked at."""

    def __init__(self) -> None:
        self._addresses: dict[str, tuple[int, float]] = {}
        """Address → how many came from it, and when the last one did."""

    def wait_s(self, address: str) -> float:
        """The time for which the address has to wait; 0: its token may be looked at."""
        wrong, last = self._addresses.get(address, (0, 0.0))
        if wrong < FREE:
            return 0.0
        wait = min(FIRST_S * 2.0 ** min(wrong - FREE, 30), LONGEST_S)
        return max(0.0, last + wait - time.monotonic())

    def note(self, address: str, *, right: bool) -> None:
        (wrong, last), now = self._addresses.pop(address, (0, 0.0)), time.monotonic()
        if right:
            return
        wrong = 1 if now - last > FORGET_S else wrong + 1
        self._addresses[address] = wrong, now
        if len(self._addresses) > MOST:
            del self._addresses[next(iter(self._addresses))]
        log.warning("a wrong token in the form of the dashboard from %s, %d of it by now", address, wrong)


class PageGuard:
    """The middleware in front of the pages. A token signs in if it is one of an operator or a viewer for all topics."""

    def __init__(self, app: ASGIApp, *, tokens: Tokens | None, hosts: Hosts, cookie: str) -> None:
        """``cookie``: the name of the one that holds the token of a browser."""
        self._app = app
        self._tokens = tokens
        self._hosts = hosts
        self._cookie = cookie
        self._attempts = Attempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        cookies: list[str] = []
        seed = request.cookies.get("shardq_form", "")
        if len(seed) < SEED_LENGTH:
            seed = secrets.token_urlsafe()
            if request.method == "GET" and not path_of(request).startswith(STATIC):
                cookies.append(cookie(request, "shardq_form", seed))
        key = request.cookies.get(self._cookie, "")
        csrf = hmac.new(key.encode(), f"form {seed}".encode(), hashlib.sha256).hexdigest()
        scope["shardq.dashboard"] = web.Access(csrf=csrf)
        try:
            refusal = await self._turned_away(request, cookies)
        except InvalidOption as exc:  # its form can't be read
            refusal = refused(request, str(exc), 400, bare=True)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                for each in cookies:
                    headers.append("Set-Cookie", each)
            await send(message)

        await (refusal or self._app)(scope, receive, sending)

    async def _turned_away(self, request: Request, cookies: list[str]) -> Response | None:
        """The answer to a request that is kept from its page; None for all others."""
        # as it stands: what is like such an address leads nowhere, and says so only to those who have the token
        read = str(request.scope["path"]).removeprefix(root_of(request)) if request.method in ("GET", "HEAD") else ""
        host = request.headers.get("host", "")
        if reason := self._hosts.wrong(request.scope.get("server"), host) or self._wrong_origin(request):
            return refused(request, reason, bare=True)
        if self._tokens is None or read in FILES:
            return None
        session = self._viewer(request.cookies.get(self._cookie, ""))
        if session is not None and not bearer_of(request.headers.get("authorization", "")):
            access_of(request).read_only = "operator" not in session.roles
            # with an empty fragment: or the browser would keep the one with the token
            return RedirectResponse(f"{root_of(request)}/#", 303) if path_of(request) == SIGN_IN else None
        return await self._without_session(request, cookies)

    def _viewer(self, shown: str) -> Caller | None:
        """Whoever has this token, and may see the pages, which show every topic."""
        caller = self._tokens.find(shown) if self._tokens and shown else None
        return caller if caller and caller.may("viewer", None) else None

    async def _without_session(self, request: Request, cookies: list[str]) -> Response | None:
        """The answer to a browser or a program that has to show the token: None if it does."""
        signs_in = request.method == "POST" and path_of(request) == SIGN_IN
        bounds = {"most_bytes": SIGN_IN_BYTES, "most_fields": SIGN_IN_FIELDS}
        form = await web.form_of(request, **bounds) if signs_in else None
        shown = form.text("token") if form else bearer_of(request.headers.get("authorization", ""))
        back = _place(form.text("back") if form else f"{path_of(request)}?{request.url.query}".rstrip("?"))
        if not shown:
            return _sign_in(request, 200 if path_of(request) == SIGN_IN else 401, back)
        address = request.client.host if request.client else "an unknown address"
        if form and (wait := math.ceil(self._attempts.wait_s(address))):
            reason = f"Too many wrong tokens came from {address}. Wait for {wait} s: no token is looked at until then."
            headers = {"Retry-After": str(wait)}
            return refused(request, reason, 429, bare=True, headers=headers)
        caller = self._viewer(shown)
        if form:
            self._attempts.note(address, right=caller is not None)
        if caller is None:
            return _sign_in(request, 403 if form else 401, back, wrong=True)
        if form:
            cookies.append(cookie(request, self._cookie, shown))
            return RedirectResponse(root_of(request) + back, 303)
        access_of(request).by_bearer = True
        access_of(request).read_only = "operator" not in caller.roles
        return None

    def _wrong_origin(self, request: Request) -> str:
        origin = request.headers.get("origin")
        if request.method in ("GET", "HEAD") or origin is None:
            return ""
        host = request.headers.get("host", "").lower()
        if origin.lower().partition("://")[2] == host or self._hosts.has(_host_of(origin)):
            return ""
        return f"A page of another site ({origin!r:.80}) has sent this. Nothing was changed."


def bearer_of(authorization: str) -> str:
    """The token of this header."""
    kind, _, value = authorization.partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _sign_in(request: Request, status: int, back: str, *, wrong: bool = False) -> Response:
    """The page that asks for the token. ``back``: where it leads then."""
    headers = {"WWW-Authenticate": 'Bearer realm="shardq"'} if status == 401 else None
    return web.rendered(
        request, "sign_in.html", status, bare=True, wrong=wrong, sign_in=SIGN_IN, back=back, headers=headers
    )


def _place(text: str) -> str:
    """An address within the application, whatever a form says: with two slashes it would be that of another host."""
    place = "/" + text.lstrip("/\\")
    return "/" if place.startswith(SIGN_IN) else place


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
