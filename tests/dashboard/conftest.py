"""``client`` is a browser on a dashboard without a token, ``guarded`` on one that has one: over HTTP, a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from cluster.server import Server
from shardq import AsyncEngine, Engine
from shardq.http import app
from tests.dashboard.browsing import Browser, browsing
from tests.support.tokens import write_tokens

TOKEN = "a-token-for-these-tests"


@pytest.fixture
def url(single: Server) -> str:
    """What the pages ask is tried on a cluster elsewhere."""
    return single.url


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    """An open engine without pollers."""
    with Engine(url, name=name, shards=4) as engine:
        yield engine


@pytest.fixture
def client(engine: Engine) -> Iterator[Browser]:
    with browsing(app(engine)) as client:
        yield client


@pytest.fixture
def asynchronous(engine: Engine, url: str, name: str) -> Iterator[Browser]:
    """The dashboard of an engine for asyncio, which shows the same tasks as ``engine`` has."""
    shown = AsyncEngine(url, name=name, shards=4)

    async def close(request: Request) -> Response:
        await shown.close()
        return PlainTextResponse("closed")

    with browsing(Starlette(routes=[Route("/close", close), Mount("", app(shown))])) as client:
        yield client
        client.get("/close")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A file with the token of one who may see and do all."""
    return write_tokens(tmp_path / "tokens", ops=(TOKEN, "operator", "*"))


@pytest.fixture
def guarded(engine: Engine, tokens: Path) -> Iterator[Browser]:
    with browsing(app(engine, tokens=tokens)) as client:
        yield client
