"""Thousands of connections whose requests never end stop neither the probes nor the door."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import shardq
from cluster.server import Server
from shardq import Engine
from shardq.http import app
from shardq.http.server import served
from tests.support.slow_clients import SOON_S, ended, slow, usual_s
from tests.support.waiting import wait_until

SLOW = 2000


@pytest.fixture
def url(single: Server) -> str:
    """Connections of clients do not depend on nodes."""
    return single.url


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of each connection are this process's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def serving(kind: str, engine: Engine) -> Iterator[str]:
    with ExitStack() as stack:
        if kind == "probes":
            yield stack.enter_context(shardq.metrics.serve(engine, "127.0.0.1:0")).url
        else:
            door = app(engine)
            yield stack.enter_context(served(door, "127.0.0.1", close=door.close))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["probes", "door"])
@pytest.mark.usefixtures("many_files")
def test_two_thousand_slow_connections_stop_nothing(kind: str, url: str, name: str) -> None:
    paths = ("/livez", "/readyz") if kind == "probes" else ("/livez", "/v1", "/static/style.css")
    with Engine(url, name=name, shards=1) as engine, serving(kind, engine) as place, ExitStack() as stack:
        clients = slow(stack, place, SLOW)
        assert usual_s(place, paths) < SOON_S
        wait_until(lambda: all(map(ended, clients)), "none is held for long", timeout=30)
        assert usual_s(place, paths) < SOON_S
