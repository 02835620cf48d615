"""A headless Chromium for tests: where it is on this machine, and a visit that notes all that a page does wrong.

No package registry of ours carries a browser, so it is the system's: Debian's ``chromium``, or another Chromium or
Chrome on the PATH. ``make test`` says in its summary that tests in a browser were left out where there is none;
``make test-browser`` fails there, with the words of ``NoBrowser``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

FOLDER = "tests/dashboard/browser"
"""The tests that need one."""

VARIABLE = "SHARDQ_TEST_BROWSER"

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

_HOW = (
    f"tests in a browser need Chromium or Chrome on the PATH, or its file in {VARIABLE}; on Debian and Ubuntu: "
    "apt-get install chromium"
)

_ARGUMENTS = (
    "--no-sandbox",  # CI is root in a container, and the pages are ours
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",  # it would ask for updates, and wait for a network that is not there
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

PATIENCE_MS = 60_000
"""What is awaited comes at once, but for a machine that is busy."""


class NoBrowser(Exception):
    """There is none on this machine."""


def found() -> Path | None:
    """The program; None if this machine has none."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        path = shutil.which(named)
        if path is None:
            raise NoBrowser(f"{VARIABLE}={named!r} is no program; {_HOW}")
        return Path(path)
    return next((Path(path) for path in map(shutil.which, _NAMES) if path), None)


def needed() -> Path:
    """The program; raises NoBrowser, which says what to install."""
    path = found()
    if path is None:
        raise NoBrowser(_HOW)
    return path


def left_out() -> str:
    """The line that tells of tests that were not run; empty where there is a browser."""
    if found() is not None:
        return ""
    return f"{FOLDER} was left out: there is no browser here, and {_HOW}; then: make test-browser"


@contextmanager
def launched(path: Path) -> Iterator[Browser]:
    """Runs the browser. While it does, the calling thread can't run an event loop of its own."""
    from playwright.sync_api import sync_playwright  # here: the lowest versions of the dependencies are tried without

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One browser window at one origin, with its cookies, and what went wrong on the pages that it showed."""

    def __init__(self, browser: Browser, origin: str, *, width: int = 1280) -> None:
        self.origin = origin
        self.wrong: list[str] = []
        self._context = browser.new_context(viewport={"width": width, "height": 900}, base_url=origin)
        self._context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self._context.new_page()
        # a violation of the Content Security Policy is an error in the console, too
        self.page.on("console", self._note_console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"{self.page.url}: {error}"))
        self.page.on("request", self._note_request)

    def close(self) -> None:
        self._context.close()

    def check(self) -> None:
        """Fails if a page had an error in its console, broke its policy, or asked another origin for anything."""
        assert not self.wrong, "\n".join(self.wrong)

    def weak_texts(self) -> list[str]:
        """The texts of the page that are hard to read."""
        found: list[str] = self.page.evaluate(Path(__file__).with_name("contrast.js").read_text())
        return found

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{self.page.url}: {message.type} in the console: {message.text}")

    def _note_request(self, request: Request) -> None:
        scheme, host = urlsplit(request.url)[:2]
        if scheme in ("http", "https", "ws", "wss") and f"{scheme}://{host}" != self.origin:
            self.wrong.append(f"{self.page.url}: asked for {request.url}")
