"""Stands in front of every page: the name of the host, the token, and the headers that tell browsers what a page
may do. The forms of a page are checked in ``routing``.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Set as AbstractSet
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardq.dashboard.cookies import cookie
from shardq.dashboard.rendering import PROBES, STATIC, rendered
from shardq.dashboard.visit import Visit, note_visit, place_of, root_of
from shardq.errors import InvalidOption

LEAST_TOKEN = 16
"""Characters of a token: nobody guesses so many."""

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
        self._token = token
        self.session = self.derived("session")
        """The value of the cookie of a browser that has shown the token."""
        self.cookie = f"shardq_{self.derived('cookie')[:8]}"
        """Its name: browsers share cookies among the ports of a host."""

    @property
    def is_needed(self) -> bool:
        return self._token is not None

    def fits(self, shown: str) -> bool:
        return self._token is not None and hmac.compare_digest(shown.encode(), self._token.encode())

    def derived(self, purpose: str) -> str:
        return hmac.new((self._token or "").encode(), purpose.encode(), hashlib.sha256).hexdigest()


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp, *, key: Key, hosts: AbstractSet[str]) -> None:
        self._app = app
        self._key = key
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        cookies: list[str] = []
        seed = request.cookies.get("shardq_form", "")
        if len(seed) < LEAST_TOKEN:
            seed = secrets.token_urlsafe()
            if request.method == "GET" and not place_of(request).startswith((STATIC, *PROBES)):
                cookies.append(cookie(request, "shardq_form", seed))
        bearer = self._key.is_needed and self._key.fits(_bearer(request))
        note_visit(scope, Visit(csrf=self._key.derived(f"form {seed}"), by_bearer=bearer))
        refusal = self._turned_away(request, cookies, by_bearer=bearer)

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

    def _turned_away(self, request: Request, cookies: list[str], *, by_bearer: bool) -> Response | None:
        """The answer to a request that no page gets."""
        if place_of(request) in PROBES:
            return None
        if reason := self._wrong_host(request) or self._wrong_origin(request):
            return rendered(request, "error.html", 403, title="That was not possible", reason=reason, bare=True)
        if not self._key.is_needed or by_bearer or place_of(request).startswith(STATIC):
            return None
        shown = request.query_params.get("token")
        if shown is not None and request.method == "GET":
            if not self._key.fits(shown):
                return rendered(request, "sign_in.html", 403, bare=True, wrong=True)
            cookies.append(cookie(request, self._key.cookie, self._key.session))
            return RedirectResponse(_without_token(request), 303)
        if hmac.compare_digest(request.cookies.get(self._key.cookie, "").encode(), self._key.session.encode()):
            return None
        return rendered(
            request, "sign_in.html", 401, bare=True, wrong=False, headers={"WWW-Authenticate": 'Bearer realm="shardq"'}
        )

    def _wrong_host(self, request: Request) -> str:
        """Names that some other site lets point to this machine: its scripts could read every page."""
        server = request.scope.get("server")
        if not server or not _is_loopback(server[0]):
            return ""
        name = _host(request.headers.get("host", ""))
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


def _without_token(request: Request) -> str:
    kept = urlencode([pair for pair in parse_qsl(request.url.query) if pair[0] != "token"])
    return root_of(request) + place_of(request) + (f"?{kept}" if kept else "")


def _host(netloc: str) -> str:
    return _host_of(f"//{netloc}")


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
