"""Looks at an engine as a whole, for a scrape: in a thread of its own, so that a silent server holds up no scrape, and
once a second at most, whoever asks.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from shardq.engine.health import Health, with_reasons
from shardq.engine.parts import own_reasons
from shardq.engine.stats import Stats
from shardq.engine.sync import Engine
from shardq.fleet.serving import unserved
from shardq.layout.buckets import leaving
from shardq.layout.topology import Topology

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine

log = logging.getLogger("shardq.metrics")

WAIT_S = 3.0
"""A scrape waits so long for a look; Prometheus gives up after ten seconds."""

FRESH_S = 1.0
"""A look younger than this answers another scrape."""


class Seen(NamedTuple):
    """The findings of one look."""

    health: Health
    unserved: int | None
    """None if it can't be told."""
    unswept: int | None
    misplaced: int | None


class Looker:
    """The looks at one engine, one at a time. One that takes too long answers a later scrape. Thread-safe."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._running: threading.Event | None = None
        """Set when the look under way is over."""
        self._found: Seen | None = None
        self._found_at = 0.0
        self._failing = False

    def look(self) -> Seen | None:
        """Returns what a look found; None if it failed, or takes longer than ``WAIT_S``."""
        with self._lock:
            if self._found is not None and time.monotonic() - self._found_at < FRESH_S:
                return self._found
            if self._running is None:
                self._found = None
                self._running = threading.Event()
                threading.Thread(
                    target=self._look, args=(self._running,), name="shardq-metrics-look", daemon=True
                ).start()
            running = self._running
        return self._found if running.wait(WAIT_S) else None

    def _look(self, over: threading.Event) -> None:
        found = None
        try:
            found = self._seen()
            self._failing = False
        except Exception as exc:  # noqa: BLE001  a scrape must not fail for it: shardq_up tells
            if not self._failing:
                self._failing = True
                log.warning("no look at the engine %r for its metrics, trying again: %s", self._engine.name, exc)
        with self._lock:
            self._found, self._found_at, self._running = found, time.monotonic(), None
        over.set()

    def _seen(self) -> Seen:
        engine = self._engine
        if isinstance(engine, Engine):
            return _seen(engine)
        # An event loop may be busy, or wait for this very scrape: an engine for threads looks in its place.
        options = engine.options
        with Engine(
            options.url,
            name=options.name,
            shards=options.shards,
            timeout=options.timeout,
            connect_timeout=options.connect_timeout,
            protocol=options.protocol,
            fsync=options.fsync,
        ) as beside:
            seen = _seen(beside)
        return seen._replace(health=with_reasons(seen.health, own_reasons(engine)))


def _seen(engine: Engine) -> Seen:
    health = engine.health()
    is_told = health.fleet or "no_dispatcher" in health.kinds
    nobodys = len(unserved(health.fleet, engine.topology.span())) if is_told else None
    if health.stats.missing:
        return Seen(health, nobodys, None, None)
    progress = engine.growth().progress()
    unswept = 0 if progress.done else progress.of - progress.swept
    misplaced = round(_leaving(health.stats, engine.topology) * unswept / progress.of) if unswept else 0
    return Seen(health, nobodys, unswept, misplaced)


def _leaving(stats: Stats, topology: Topology) -> float:
    """The tasks that would belong elsewhere if no shard had been swept yet."""
    shares = leaving(topology.shards, topology.priors)
    return sum(
        ((each.scheduled or 0) + (each.dead or 0)) * shares[each.shard]
        for each in stats.shards
        if each.shard < len(shares)
    )
