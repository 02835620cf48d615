"""``visit`` opens windows of a headless Chromium on a dashboard that a token guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from shardq import Engine
from shardq.http import app
from shardq.http.server import served
from tests.dashboard.conftest import TOKEN
from tests.support import browser
from tests.support.browser import Visit

Visiting = Callable[..., Visit]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Ends with the module: while it runs, tests of others could not run event loops in this thread."""
    with browser.launched(browser.needed()) as found:
        yield found


@pytest.fixture
def origin(engine: Engine, tokens: Path) -> Iterator[str]:
    door = app(engine, tokens=tokens)
    with served(door, "127.0.0.1", close=door.close) as url:
        yield url


@pytest.fixture
def visit(chromium: Browser, origin: str) -> Iterator[Visiting]:
    """Opens a window that has shown the token. Fails in the end if one of its pages did something wrong."""
    made: list[Visit] = []

    def visiting(*, width: int = 1280) -> Visit:
        made.append(Visit(chromium, origin, width=width))
        made[-1].page.goto(f"/sign-in#token={TOKEN}")
        made[-1].page.wait_for_url(f"{origin}/")
        return made[-1]

    yield visiting
    for each in made:
        each.close()
    for each in made:
        each.check()
