"""A browser, as far as tests need one: it keeps cookies, and sends the forms of pages with their hidden field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from starlette.types import ASGIApp

from shardq.http.server import nothing, served

_CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class Browser(httpx.Client):
    """Follows no redirect by itself."""

    def form_of(self, page: str) -> str:
        """The hidden field of the forms on a page."""
        answer = self.get(page)
        found = _CSRF.search(answer.text)
        assert found is not None, answer.text
        return found[1]

    def sign_in(self, token: str, back: str = "/") -> httpx.Response:
        return self.post("/sign-in", data={"token": token, "back": back})

    def submit(self, page: str, action: str, **fields: str) -> httpx.Response:
        """Opens the page and sends a form of it. Returns the page that the answer leads to, or the refusal."""
        csrf = self.form_of(page)
        headers = {"Origin": str(self.base_url).rstrip("/")}
        answer = self.post(action, data={"csrf": csrf, **fields}, headers=headers)
        return self.get(answer.headers["location"]) if answer.status_code == 303 else answer


@contextmanager
def browsing(app: ASGIApp, *, prefix: str = "") -> Iterator[Browser]:
    """Serves an application, and gives a browser there. ``prefix``: where the dashboard is mounted in it."""
    close = getattr(app, "close", nothing)
    with served(app, "127.0.0.1", close=close) as url, Browser(base_url=url + prefix, timeout=30) as client:
        yield client
