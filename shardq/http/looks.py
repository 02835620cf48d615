"""Looks: the calls that only read the whole, the probes, and the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shardq.engine.internals import Internals
from shardq.errors import ShardqError
from shardq.http.exchange import Answer, Ask, Gateway, Route
from shardq.metrics.http import not_alive
from shardq.version import __version__

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine
    from shardq.engine.sync import Engine

TEXT = b"text/plain; charset=utf-8"

FRESH_S = 5.0
"""``/readyz`` tells of dispatchers by a look that is not older, if one succeeds."""

NO_DISPATCHER = "no dispatcher runs: tasks are stored, and none becomes ready; start `shardq run`, or serve --dispatch"


class AboutForm(msgspec.Struct):
    """What answers here."""

    shardq: str
    """The version."""
    engine: str
    """Its name."""
    openapi: str
    """Where the description of all calls is."""


async def about(ask: Ask, body: None, query: None) -> Answer:
    """Tells the version and the engine."""
    return Answer(AboutForm(__version__, ask.engine.name, "/v1/openapi.json"))


ROUTES = (Route(method="GET", path="/v1", roles=(), handler=about, answer=AboutForm),)


# ---- probes and metrics


class Probe(NamedTuple):
    """An address beside the API."""

    answer: Callable[[], Awaitable[Answer]]
    is_guarded: bool = False
    """True if it needs the token of a viewer."""
    media: bytes = TEXT


class Probes:
    """The addresses that platforms ask, and Prometheus. None waits for the servers."""

    def __init__(self, engine: Engine | AsyncEngine, gateway: Gateway) -> None:
        self._engine = engine
        self._gateway = gateway
        self.stopping = False
        """True once the process is about to end."""
        self._undispatched = ""
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._found = {"/livez": Probe(self._livez), "/readyz": Probe(self._readyz)}

    def find(self, path: str) -> Probe | None:
        return self._found.get(path)

    async def _livez(self) -> Answer:
        return _told(list(not_alive(self._engine)))

    async def _readyz(self) -> Answer:
        """Ready is what takes pushes: a missing dispatcher makes none of them fail, so it is told, and no reason."""
        if self.stopping:
            return _told(["stopping"])
        if not (is_open := Internals(self._gateway.engine).is_open):
            self._looked_at = float("-inf")
        if self._looking is None and time.monotonic() - self._looked_at >= FRESH_S:
            self._looking = asyncio.create_task(self._look())
        if not is_open:
            return _told(["not connected yet: the number of shards is not known"])
        return Answer(f"ok\n{self._undispatched}".encode())

    async def _look(self) -> None:
        try:
            self._undispatched = "" if await is_dispatched(self._gateway.engine) else f"{NO_DISPATCHER}\n"
        except ShardqError:  # what is known stays
            pass
        finally:
            self._looked_at, self._looking = time.monotonic(), None


async def is_dispatched(engine: AsyncEngine) -> bool:
    """True if a dispatcher lives somewhere."""
    return any(member.kind == "dispatcher" for member in await engine.fleet())


def _told(reasons: list[str]) -> Answer:
    return Answer("".join(f"{reason}\n" for reason in reasons).encode() or b"ok\n", 503 if reasons else 200)
