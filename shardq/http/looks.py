"""Looks: the calls that only read the whole, the probes, and the metrics."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shardq.core.fleet.member import NO_DISPATCHER, dispatchers
from shardq.engine.around import (
    MAX_DEAD,
    MAX_LATE_S,
    MAX_READY_AGE_S,
    MOST_TOPICS,
    Change,
    EngineAccess,
    forms,
    largest,
)
from shardq.errors import ShardqError
from shardq.features.listing.forecast import Horizon
from shardq.http.exchange import Answer, Ask, Gateway, Route
from shardq.metrics.http import Answer as Scrape
from shardq.metrics.http import metrics_of, not_alive
from shardq.version import __version__

if TYPE_CHECKING:
    from shardq import AsyncEngine, Engine

TEXT = b"text/plain; charset=utf-8"

FRESH_S = 5.0
"""``/readyz`` tells of dispatchers by a look that is not older, if one succeeds."""


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


# ---- the whole


class TopicsForm(msgspec.Struct):
    topics: list[forms.TopicLine]
    """The hundred topics with the most tasks of those that the token has."""


class StatsQuery(msgspec.Struct, forbid_unknown_fields=True):
    shards: bool = False
    """True for the single shards, too."""


class HealthQuery(msgspec.Struct, forbid_unknown_fields=True):
    max_late: float = MAX_LATE_S
    max_ready_age: float = MAX_READY_AGE_S
    max_dead: int = MAX_DEAD


class ForecastQuery(msgspec.Struct, forbid_unknown_fields=True):
    horizon: Horizon = "hour"


class BucketForm(msgspec.Struct):
    start: dt.datetime
    count: int


class ForecastForm(msgspec.Struct):
    """The scheduled tasks by the time at which they fall due."""

    now: dt.datetime
    step_s: float
    overdue: int
    buckets: list[BucketForm]
    later: int
    total: int
    missing: tuple[int, ...]
    """Shards that could not be read."""


class FleetForm(msgspec.Struct):
    members: list[forms.MemberForm]


class ChangesForm(msgspec.Struct):
    changes: list[Change]
    """The newest first."""


async def topics(ask: Ask, body: None, query: None) -> Answer:
    """Counts the tasks of each topic by their states."""
    stats = await ask.engine.stats(shards=False)
    reached = {topic: each for topic, each in stats.topics.items() if ask.caller.reaches(topic)}
    return Answer(TopicsForm([forms.topic(stats, name, each) for name, each in largest(reached, MOST_TOPICS).items()]))


async def stats(ask: Ask, body: None, query: StatsQuery) -> Answer:
    """Counts all tasks by state, topic and shard, with the verdict of health."""
    ask.check("viewer", None)
    health = await ask.engine.health()
    return Answer(forms.stats(health, largest(health.stats.topics, MOST_TOPICS), totals=not query.shards))


async def health(ask: Ask, body: None, query: HealthQuery) -> Answer:
    """Says if all is well, and if not, why."""
    ask.check("viewer", None)
    return Answer(forms.verdict(await ask.engine.health(query.max_late, query.max_ready_age, query.max_dead)))


async def forecast(ask: Ask, body: None, query: ForecastQuery) -> Answer:
    """Counts the tasks that fall due in each minute of the next hour, hour of the day, or day of the month."""
    ask.check("viewer", None)
    found = await ask.engine.forecast(query.horizon)
    return Answer(
        ForecastForm(
            found.now,
            found.step.total_seconds(),
            found.overdue,
            [BucketForm(start, count) for start, count in found.buckets],
            found.later,
            found.total,
            found.missing,
        )
    )


async def fleet(ask: Ask, body: None, query: None) -> Answer:
    """Lists the processes of the engine that live."""
    ask.check("viewer", None)
    return Answer(FleetForm([forms.member(each) for each in await ask.engine.fleet()]))


async def changes(ask: Ask, body: None, query: None) -> Answer:
    """Lists the last hundred changes that operators made."""
    ask.check("viewer", None)
    return Answer(ChangesForm(await ask.engine.changes()))


def _look(path: str, handler: Callable[[Ask, None, Any], Awaitable[Answer]], answer: Any, query: Any = None) -> Route:
    return Route(method="GET", path=path, roles=("viewer",), handler=handler, answer=answer, query=query)


ROUTES = (
    Route(method="GET", path="/v1", roles=(), handler=about, answer=AboutForm),
    _look("/v1/topics", topics, TopicsForm),
    _look("/v1/stats", stats, forms.StatsForm, StatsQuery),
    _look("/v1/health", health, forms.VerdictForm, HealthQuery),
    _look("/v1/forecast", forecast, ForecastForm, ForecastQuery),
    _look("/v1/fleet", fleet, FleetForm),
    _look("/v1/changes", changes, ChangesForm),
)


# ---- probes and metrics


class Probe(NamedTuple):
    """An address beside the API."""

    answer: Callable[[], Awaitable[Answer]]
    is_guarded: bool = False
    """True if it needs the token of a viewer."""


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
        self._found = {
            "/livez": Probe(self._livez),
            "/readyz": Probe(self._readyz),
            "/metrics": Probe(self._metrics, is_guarded=True),
        }
        self._scrape: Callable[[], Scrape] | None = None

    def find(self, path: str) -> Probe | None:
        return self._found.get(path)

    async def _livez(self) -> Answer:
        return _told(list(not_alive(self._engine)))

    async def _metrics(self) -> Answer:
        """In a thread: a scrape waits for the servers."""
        self._scrape = self._scrape or metrics_of(self._engine)
        found = await asyncio.to_thread(self._scrape)
        return Answer(found.text, found.status, media=found.type.encode())

    async def _readyz(self) -> Answer:
        """Ready is what takes pushes: a missing dispatcher makes none of them fail, so it is told, and no reason."""
        if self.stopping:
            return _told(["stopping"])
        if not (is_open := EngineAccess(self._gateway.engine).is_open):
            self._looked_at = float("-inf")
        if self._looking is None and time.monotonic() - self._looked_at >= FRESH_S:
            self._looking = asyncio.create_task(self._look())
        if not is_open:
            return _told(["not connected yet: the number of shards is not known"])
        return Answer(f"ok\n{self._undispatched}".encode(), media=TEXT)

    async def _look(self) -> None:
        try:
            self._undispatched = "" if dispatchers(await self._gateway.engine.fleet()) else f"{NO_DISPATCHER}\n"
        except ShardqError:  # what is known stays
            pass
        finally:
            self._looked_at, self._looking = time.monotonic(), None


def _told(reasons: list[str]) -> Answer:
    return Answer("".join(f"{reason}\n" for reason in reasons).encode() or b"ok\n", 503 if reasons else 200, media=TEXT)
