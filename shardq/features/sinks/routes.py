"""The routes that a process serves: topics that are forwarded to something else than the engine's own servers. They are
one delivery loop, whose handlers are sinks. From ``start()`` to ``stop()`` of its dispatcher, which calls this.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from shardq.core.calls.consume import SettleRetry
from shardq.core.dispatcher.forwarding import RouteFault
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.report import MOST_ROUTES, RouteStats, first_routes
from shardq.core.layout.topology import Route, Topology
from shardq.core.locks import SignalSafeEvent
from shardq.core.subscriber import Subscriber
from shardq.core.threads import begun
from shardq.core.topology_cache import TopologyCache
from shardq.delivery.hooks import Hooks
from shardq.delivery.job import Job, Lot
from shardq.delivery.lookout import Lookout
from shardq.delivery.loop import DeliveryLoop
from shardq.delivery.roused import Roused
from shardq.delivery.runners import SharedThreads
from shardq.features.sinks.base import AsyncSink, Sink, SinkBase
from shardq.features.sinks.blocking import ThreadedSink
from shardq.features.sinks.egress import Egress
from shardq.features.sinks.gate import Gate
from shardq.features.sinks.handling import RouteHandler, SinkHandler, text_of
from shardq.features.sinks.looped import LoopedSink
from shardq.features.sinks.own_loop import LOOP
from shardq.features.sinks.registry import sink_of

log: logging.Logger = logging.getLogger("shardq.sinks")

LEASE_S = 15.0
"""Leases are extended while a batch is on its way, so this is how long the tasks of a process that was killed wait."""

THREADS = 128
"""Of all sinks that block together, at most."""

SLOW_S = 1.0
"""A call that takes longer is slow, and the next ones of its route have part in half of the threads."""

SENDING_S = 5.0
"""The time for batches that are on their way when the process ends. Without it each end would send tasks twice."""

ENDING_S = 1.0
"""The time in which sinks answer what was interrupted, and that in which they disconnect, all together."""


class Served:
    """A route that has had a task."""

    def __init__(
        self, topic: str, route: Route, make: Callable[[Served, SinkBase], SinkHandler], egress: Egress
    ) -> None:
        self.topic: str = topic
        self.route: Route = route
        self._make, self._egress = make, egress
        self.gate: Gate = Gate(topic, route)
        self.handler: SinkHandler | None = None
        self.sink: SinkBase | None = None

    def made(self) -> SinkBase:
        """The sink, made anew if a secret has changed. Raises what is wrong with its URL in this process."""
        self.sink = sink_of(self.route, self._egress, self.sink)
        return self.sink

    def ready(self) -> SinkHandler | None:
        if self.handler is None:
            try:
                self.handler = self._make(self, self.made())
            except BaseException as exc:  # noqa: BLE001  the class of a package, or one that is missing
                self.gate.is_down(text_of(exc))
        return self.handler


class RouteLoop(DeliveryLoop):
    """The delivery loop of the routes of a process."""

    log = log
    what = "shardq-sinks-"

    def __init__(
        self,
        driver: Driver,
        lookout: Lookout,
        served: Callable[[str], Served | None],
        routes: Mapping[str, Route],
        attempts: Mapping[str, int],
    ) -> None:
        """``routes`` of this process, by topic, and ``attempts`` of those that have a limit."""
        self._lookout = lookout
        self._entered: asyncio.AbstractEventLoop | None = None
        claims = lookout.claims_for(routes, attempts)
        super().__init__(driver, claims, Hooks(), concurrency=THREADS, loop=self.loop, threads=SharedThreads)
        threads = self._thread_runner
        assert isinstance(threads, SharedThreads), "it was said"
        self._threads: SharedThreads = threads
        self.roused: Roused = Roused(
            self._in_flight,
            driver,
            claims,
            lookout,
            served,
            places=lambda slow: threads.places(slow=slow),
            start=self._start,
            disconnect=lambda topic: self.disconnect(served(topic)),
        )
        threads.freed = self.roused.place_freed
        self._fetch_by("fetch", self.roused)
        self._has_coroutines = True

    def start(self) -> None:
        self._lookout.wait_for_permits(self._claims)
        super().start()

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of all sinks for asyncio."""
        if self._entered is None:
            self._entered = LOOP.enter()
        return self._entered

    @property
    def defect(self) -> str:
        """The fault of its threads that is none of a server, if there is one."""
        return next((loop.fault for loop in self._loops if loop.fault and not loop.fault_of_server), "")

    def end_routes(self, handlers: Sequence[SinkHandler]) -> None:
        """Returns when batches on their way are settled; after ``SENDING_S`` it interrupts those that are left, and
        after ``ENDING_S`` more it leaves those that do not return.
        """
        self._in_flight.give_back(self._in_flight.emptied())
        if not self._in_flight.wait_quiet(time.monotonic() + SENDING_S):
            for handler in handlers:
                if handler.is_open or handler.room.running:
                    handler.interrupt()
            self._in_flight.wait_quiet(time.monotonic() + ENDING_S)
        hurry = SignalSafeEvent()
        hurry.set()
        self.stop(0.0, hurry, partial(self.disconnect_all, handlers))
        if self._entered is not None:
            LOOP.leave(self._entered)

    def tell_to_end(self) -> None:
        """Claims nothing more."""
        self._in_flight.stop_fetching()
        self.roused.close()

    def disconnect(self, served: Served | None) -> None:
        """Disconnects a sink, if it has nothing to send."""
        handler = None if served is None else served.handler
        if isinstance(handler, LoopedSink):
            self._coroutine_runner.submit(handler.disconnect())
        elif isinstance(handler, ThreadedSink):
            self._threads.submit(handler.disconnect)

    def disconnect_all(self, handlers: Sequence[SinkHandler]) -> None:
        """The same for all at the end, at once."""
        ends: list[Future[Any]] = [
            self._coroutine_runner.submit(handler.disconnect())
            if isinstance(handler, LoopedSink)
            else begun(handler.disconnect, "shardq-sink")
            for handler in handlers
            if isinstance(handler, LoopedSink | ThreadedSink) and handler.is_open
        ]
        until = time.monotonic() + ENDING_S
        for end in ends:
            with contextlib.suppress(Exception):
                end.result(max(0.0, until - time.monotonic()))

    # ---- of the delivery loop

    def note_call(self, lot: Lot, size: int, seconds: float) -> None:
        super().note_call(lot, size, seconds)
        lot.room.is_slow = seconds > SLOW_S

    def note_answers(self, settled: Sequence[tuple[Job, object]], answers: Mapping[str, str]) -> None:
        for job, settlement in settled:
            if isinstance(settlement, SettleRetry) and isinstance(job.handler, RouteHandler):
                answer = answers.get(job.delivery.id)
                if answer in (None, "dead"):
                    job.handler.gate.counts["retried" if answer is None else "buried"] += 1


class Routes:
    """Follows the topology: serves routes as they come and go."""

    def __init__(self, driver: Driver, cache: TopologyCache, subscriber: Subscriber, *, egress: Egress) -> None:
        self._cache = cache
        self._egress = egress
        self._lock = threading.RLock()
        self._followed: Topology | None = None
        """The topology by which ``_routes`` are."""
        self._routes: dict[str, Route] = {}
        """Topic → the route, of those that this process serves."""
        self._served: dict[str, Served] = {}
        """The same, of those that have had a task."""
        self._former: list[SinkHandler] = []
        """Those whose route has ended, and which may still have a batch on its way."""
        self._stopped = False
        self._lookout = Lookout(
            driver,
            cache,
            subscriber,
            lease_ms=int(LEASE_S * 1000),
            follow=self.follow,
            served=lambda: list(self._routes),
            rouse=self._rouse,
        )
        self._attempts: dict[str, int] = {}
        """Topic → the attempts that its URL allows."""
        self._loop = RouteLoop(driver, self._lookout, self._served.get, self._routes, self._attempts)
        self._unlearn: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._unlearn = self._cache.on_change(lambda _: self._begin())
        self._begin()

    def _begin(self) -> None:
        """Starts what serves routes, if there are any, or has it follow a new topology."""
        if any(not route.is_here for route in self._cache.topology.routes.values()) or self._routes:
            with self._lock:
                if self._stopped:
                    return
                self._lookout.start()
                if not self._loop.at_work:
                    self._loop.start()
            self._lookout.loop.wake()

    def follow(self) -> None:
        """Serves the routes to URLs of the present topology, and no other."""
        for topic, route in self._new_routes().items():
            log.info("topic %r is forwarded to %s by this process", topic, route.named)
            try:
                sink_of(route, self._egress)
            except Exception:  # noqa: BLE001  it is met again, and told
                self._rouse(topic)

    def _new_routes(self) -> dict[str, Route]:
        """Takes up the present topology. Returns the routes that this process did not serve before."""
        topology, new = self._cache.topology, dict[str, Route]()
        with self._lock:
            before = self._followed
            if before is topology or self._stopped:
                return new
            self._followed = topology
            for topic in self._changed(before, topology):
                route = topology.routes.get(topic)
                if route is not None and route.is_here:
                    route = None
                if (was := self._routes.get(topic)) != route:
                    self._end(topic)
                    self._lookout.leave(topic)
                if route is None:
                    self._routes.pop(topic, None)
                    continue
                self._routes[topic] = route
                if was != route:
                    new[topic] = route
                if topic not in topology.paused:
                    self._lookout.look_at([topic])
        return new

    def _changed(self, before: Topology | None, topology: Topology) -> Collection[str]:
        """The topics of which a topology may change whether and how this process serves them."""
        routes = topology.routes
        if before is None or topology.epoch != before.epoch + 1:  # what was in between woke nobody
            return routes.keys() | self._routes.keys()
        changed = {topic for topic, route in routes.items() if before.routes.get(topic) != route}
        return changed | (before.routes.keys() - routes.keys()) | (set(before.paused) - set(topology.paused))

    def _end(self, topic: str) -> None:
        former = self._served.pop(topic, None)
        self._loop.roused.forget(topic)
        self._attempts.pop(topic, None)
        if former is not None and (handler := former.handler) is not None:
            handler.end()
            handler.room.freed = lambda: self._loop.disconnect(former) if handler.is_idle else None
            handler.room.freed()
            self._former = [each for each in [*self._former, handler] if each.room.tasks or each.is_open]

    def _rouse(self, topic: str) -> None:
        """Has the topic claimed."""
        with self._lock:
            route = self._routes.get(topic)
            if route is None or self._stopped:
                return
            if topic not in self._served:
                self._served[topic] = Served(topic, route, self._handler, self._egress)
        self._loop.roused.rouse(topic)

    def _handler(self, served: Served, sink: SinkBase) -> SinkHandler:
        topic, route = served.topic, served.route

        def is_over() -> bool:
            topology = self._cache.topology
            return topology.routes.get(topic) != route or topic in topology.paused

        handler: SinkHandler
        if isinstance(sink, AsyncSink):
            handler = LoopedSink(sink, served.gate, loop=self._loop.loop, anew=served.made, is_over=is_over)
        else:
            assert isinstance(sink, Sink), "there are two kinds"
            handler = ThreadedSink(sink, served.gate, anew=served.made, is_over=is_over)
        handler.room.freed = partial(self._loop.roused.room_freed, topic, served.gate)
        if sink.max_attempts is not None:
            self._attempts[topic] = sink.max_attempts
        return handler

    # ---- the end

    def stop(self) -> None:
        """Claims nothing more."""
        self._unlearn()
        self.follow()
        with self._lock:
            self._stopped = True
            self._lookout.stop()
        self._loop.tell_to_end()
        for handler in self._handlers():
            handler.end()

    def _handlers(self) -> list[SinkHandler]:
        with self._lock:
            return [*(each.handler for each in self._served.values() if each.handler is not None), *self._former]

    def join(self) -> None:
        """Returns when batches on their way are settled, or after some seconds."""
        if self._loop.at_work:
            self._loop.end_routes(self._handlers())
        self._lookout.close()

    # ---- what it says of itself

    def stats(self) -> tuple[RouteStats, ...]:
        """The counters of each topic that this process serves, by topic."""
        self.follow()
        with self._lock:
            return tuple(self._stats_of(topic, route) for topic, route in sorted(self._routes.items()))

    def _stats_of(self, topic: str, route: Route) -> RouteStats:
        served = self._served.get(topic)
        return RouteStats(topic=topic, to=route.shown) if served is None else served.gate.stats(self._loop.defect)

    def facts(self) -> Mapping[str, Any]:
        """The counters of the topics that a report names, and the number of all that this process serves."""
        self.follow()
        with self._lock:
            seen = [served.gate.stats(self._loop.defect) for served in self._served.values()]
            quiet = (topic for topic in self._routes if topic not in self._served)
            seen += [self._stats_of(topic, self._routes[topic]) for topic in itertools.islice(quiet, MOST_ROUTES)]
            return {"sinks": first_routes(seen), "forwards": len(self._routes)}

    def faults(self) -> tuple[RouteFault, ...]:
        """The routes that can't be served now."""
        with self._lock:
            seen = [served.gate.stats(self._loop.defect) for _, served in sorted(self._served.items())]
        failing = [each for each in seen if each.error and each.topic not in self._cache.topology.paused]
        return tuple(RouteFault(each.topic, each.to, each.error, ()) for each in failing)
