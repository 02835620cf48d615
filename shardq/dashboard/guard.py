"""Stands in front of every page: the name of the host, the token, and the headers that tell browsers what a page
may do. The forms of a page are checked in ``web``.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import secrets
import time
from collections.abc import Set as AbstractSet
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardq.core.model.printable import quoted
from shardq.dashboard import web
from shardq.dashboard.web import FILES, PROBES, STATIC, access_of, cookie, path_of, refused, root_of
from shardq.errors import InvalidOption

log: logging.Logger = logging.getLogger("shardq.dashboard")

LEAST_TOKEN = 16
"""Least length of a token."""

PLACEHOLDER = "replace-by-"
"""The beginning of the public token in an example."""

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


class Key:
    """The token, and the secrets that are made from it: those of all processes with this token agree."""

    def __init__(self, token: str | None) -> None:
        if token is not None and (not isinstance(token, str) or len(token) < LEAST_TOKEN or not token.isascii()):
            raise InvalidOption(
                f"a token needs {LEAST_TOKEN} ASCII characters or more; secrets.token_urlsafe() makes one"
            )
        if token is not None and token.startswith(PLACEHOLDER):
            raise InvalidOption(f"the token {quoted(token)} is that of an example; secrets.token_urlsafe() makes one")
        self._token = token
        self.session: str = self.derived("session")
        """The value of the cookie of a browser that has shown the token."""
        self.cookie: str = f"shardq_{self.derived('cookie')[:8]}"
        """Its name: browsers share cookies among the ports of a host."""

    @property
    def is_needed(self) -> bool:
        return self._token is not None

    def fits(self, shown: str) -> bool:
        return self._token is not None and hmac.compare_digest(shown.encode(), self._token.encode())

    def derived(self, purpose: str) -> str:
        return hmac.new((self._token or "").encode(), purpose.encode(), hashlib.sha256).hexdigest()


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
        log.warning("a wrong token for the dashboard from %s, %d of it by now", address, wrong)


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp, *, key: Key, hosts: AbstractSet[str]) -> None:
        self._app = app
        self._key = key
        self._hosts = frozenset(host.lower() for host in hosts)
        self._attempts = Attempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        cookies: list[str] = []
        seed = request.cookies.get("shardq_form", "")
        if len(seed) < LEAST_TOKEN:
            seed = secrets.token_urlsafe()
            if request.method == "GET" and not path_of(request).startswith((STATIC, *PROBES)):
                cookies.append(cookie(request, "shardq_form", seed))
        scope["shardq.dashboard"] = web.Access(csrf=self._key.derived(f"form {seed}"))
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
        if read in PROBES:
            return None
        if reason := self._wrong_host(request) or self._wrong_origin(request):
            return refused(request, reason, bare=True)
        if not self._key.is_needed or read in FILES:
            return None
        session = request.cookies.get(self._key.cookie, "").encode()
        if hmac.compare_digest(session, self._key.session.encode()) and not _bearer(request):
            # with an empty fragment: or the browser would keep the one with the token
            return RedirectResponse(f"{root_of(request)}/#", 303) if path_of(request) == SIGN_IN else None
        return await self._without_session(request, cookies)

    async def _without_session(self, request: Request, cookies: list[str]) -> Response | None:
        """The answer to a browser or a program that has to show the token: None if it does."""
        signs_in = request.method == "POST" and path_of(request) == SIGN_IN
        bounds = {"most_bytes": SIGN_IN_BYTES, "most_fields": SIGN_IN_FIELDS}
        form = await web.form_of(request, **bounds) if signs_in else None
        shown = form.text("token") if form else _bearer(request)
        back = _place(form.text("back") if form else f"{path_of(request)}?{request.url.query}".rstrip("?"))
        if not shown:
            return _sign_in(request, 200 if path_of(request) == SIGN_IN else 401, back)
        address = request.client.host if request.client else "an unknown address"
        if wait := math.ceil(self._attempts.wait_s(address)):
            reason = f"Too many wrong tokens came from {address}. Wait for {wait} s: no token is looked at until then."
            headers = {"Retry-After": str(wait)}
            return refused(request, reason, 429, bare=True, headers=headers)
        fits = self._key.fits(shown)
        self._attempts.note(address, right=fits)
        if not fits:
            return _sign_in(request, 403 if form else 401, back, wrong=True)
        if form:
            cookies.append(cookie(request, self._key.cookie, self._key.session))
            return RedirectResponse(root_of(request) + back, 303)
        access_of(request).by_bearer = True
        return None

    def _wrong_host(self, request: Request) -> str:
        """Refuses the names that another site lets point to this machine: its scripts could read every page."""
        server = request.scope.get("server")
        if not server or not _is_loopback(server[0]):
            return ""
        name = _host_of(f"//{request.headers.get('host', '')}")
        if name in _LOCAL_NAMES or name in self._hosts:
            return ""
        return (
            f"This dashboard listens on this machine only, and is not known as {name!r:.80}. Use localhost or "
            "127.0.0.1; for a proxy, name the host in app(hosts=[…]) or with --allow-host."
        )

    def _wrong_origin(self, request: Request) -> str:
        origin = request.headers.get("origin")
        if request.method in ("GET", "HEAD") or origin is None:
            return ""
        host = request.headers.get("host", "").lower()
        if origin.lower().partition("://")[2] == host or _host_of(origin) in self._hosts:
            return ""
        return f"A page of another site ({origin!r:.80}) has sent this. Nothing was changed."


def _bearer(request: Request) -> str:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
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


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
