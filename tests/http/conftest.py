"""``program`` calls a door without tokens; ``of`` gives a program with the token of a name, at one with tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import AsyncEngine, Engine
from tests.http.calling import Program, calling
from tests.support.tokens import write_tokens

TOKENS = {
    "shop": ("shop-secret", "producer", "order-*,(default)"),
    "mailer": ("mailer-secret", "worker", "mail"),
    "ops": ("ops-secret", "operator", "*"),
    "screen": ("screen-secret", "viewer", "*"),
    "orders": ("orders-secret", "operator", "order-*"),
}


@pytest.fixture
def url(single: Server) -> str:
    """What the door asks is tried on a cluster elsewhere."""
    return single.url


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    """An open engine without pollers, of the name that the door serves."""
    with Engine(url, name=name, shards=4) as engine:
        yield engine


@pytest.fixture
def served_engine(engine: Engine, url: str, name: str) -> AsyncEngine:
    return AsyncEngine(url, name=name)


@pytest.fixture
def program(served_engine: AsyncEngine) -> Iterator[Program]:
    with calling(served_engine) as program:
        yield program


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "tokens", **TOKENS)


@pytest.fixture
def of(served_engine: AsyncEngine, tokens: Path) -> Iterator[Callable[[str], Program]]:
    with calling(served_engine, tokens=tokens) as program:
        made: list[Program] = []

        def program_of(name: str) -> Program:
            headers = {"Authorization": f"Bearer {TOKENS[name][0]}"}
            made.append(Program(base_url=program.base_url, headers=headers, timeout=30))
            return made[-1]

        yield program_of
        for each in made:
            each.close()
