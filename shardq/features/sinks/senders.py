"""The senders of a process: one for each topic that is forwarded to something else than the engine's own servers, made
for its first task. From ``start()`` to ``stop()`` of its dispatcher, which calls this.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection

from shardq.core.consumer.claim_state import Claims
from shardq.core.consumer.settling import extend, per_shard
from shardq.core.dispatcher.forwarding import RouteFault
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.report import MOST_SINKS, SinkStats, first_sinks
from shardq.core.layout.topology import Route, Topology
from shardq.core.model.record import as_stored
from shardq.core.operation import run
from shardq.core.subscriber import Subscriber
from shardq.core.threads import Loop, ended
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError
from shardq.features.sinks.egress import Egress
from shardq.features.sinks.lookout import Lookout
from shardq.features.sinks.pool import Pool
from shardq.features.sinks.registry import sink_of
from shardq.features.sinks.sender import LEASE_S, Sender

log: logging.Logger = logging.getLogger("shardq.sinks")

UPKEEP_S = LEASE_S / 3

SENDING_S = 5.0
"""The time for batches that are on their way when the process ends. Without it each end would send tasks twice."""

ENDING_S = 1.0
"""The time in which senders disconnect, all together."""

EXTEND_TIMEOUT_S = 5.0


class Senders:
    """Starts and stops senders as routes come and go."""

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        subscriber: Subscriber,
        *,
        egress: Egress,
    ) -> None:
        self._driver = driver
        self._cache = cache
        self._subscriber = subscriber
        self._egress = egress
        self._lock = threading.RLock()
        self._followed: Topology | None = None
        """The topology by which ``_routes`` are."""
        self._routes: dict[str, Route] = {}
        """Topic → the route, of those that this process serves."""
        self._senders: dict[str, Sender] = {}
        """Topic → its sender, of those that have had a task."""
        self._former: list[Sender] = []
        """Senders whose route has ended, and which may still settle their last batch."""
        self._pool = Pool()
        self._lookout = Lookout(
            driver,
            cache,
            subscriber,
            lease_ms=int(LEASE_S * 1000),
            follow=self.follow,
            served=lambda: list(self._routes),
            rouse=self._rouse,
        )
        self._upkeep = Loop(
            "shardq-sinks-upkeep",
            self._extend,
            log,
            fails="the upkeep of forwarded topics fails, trying again",
            works="the upkeep of forwarded topics works again",
        )
        """Extends leases, from the first route on."""
        self._unlearn: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._unlearn = self._cache.on_change(lambda _: self._begin())
        self._begin()

    def _begin(self) -> None:
        """Starts what serves routes, if there are any, or has it follow a new topology."""
        if any(not route.is_here for route in self._cache.topology.routes.values()) or self._routes:
            with self._lock:
                if self._upkeep.stopping.is_set():
                    return
                self._lookout.start()
                self._pool.loop.start()
                self._upkeep.start()
            self._lookout.loop.wake()

    def follow(self) -> None:
        """Serves the routes to URLs of the present topology, and no other."""
        for topic, route in self._new_routes().items():
            log.info("topic %r is forwarded to %s by this process", topic, route.named)
            try:
                sink_of(route, self._egress)
            except Exception:  # noqa: BLE001  the sender meets it again, and tells it
                self._rouse(topic)

    def _new_routes(self) -> dict[str, Route]:
        """Takes up the present topology. Returns the routes that this process did not serve before."""
        topology, new = self._cache.topology, dict[str, Route]()
        with self._lock:
            before = self._followed
            if before is topology or self._upkeep.stopping.is_set():
                return new
            self._followed = topology
            for topic in self._changed(before, topology):
                route = topology.routes.get(topic)
                if route is not None and route.is_here:
                    route = None
                if (was := self._routes.get(topic)) != route:
                    self._end_sender(topic)
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

    def _end_sender(self, topic: str) -> None:
        former = self._senders.pop(topic, None)
        if former is not None:
            former.stop()
            self._former = [sender for sender in [*self._former, former] if sender.loop.is_alive]

    def _rouse(self, topic: str) -> None:
        """Has the sender of the topic claim."""
        with self._lock:
            route, sender = self._routes.get(topic), self._senders.get(topic)
            if route is None or self._upkeep.stopping.is_set():
                return
            if sender is None:
                self._senders[topic] = sender = self._new_sender(topic, route)
                sender.loop.start()
        sender.loop.wake()

    def _new_sender(self, topic: str, route: Route) -> Sender:
        lookout = self._lookout
        claims = Claims(
            self._cache,
            [topic],
            name=f"{socket.gethostname()[:32]}-{secrets.token_hex(6)}",
            lease_ms=int(LEASE_S * 1000),
            ready_counts=lookout.claims.ready_counts,
            route=route,
            decode=as_stored,
        )
        claims.waiter, claims.limiter.wakeups = lookout.waiter, lookout.wakeups
        return Sender(topic, route, self._driver, claims, lookout, self._pool, self._egress)

    def _extend(self) -> float:
        """Extends the leases of what is on its way. Returns when to come again."""
        if held := [delivery for sender in self._all() for delivery in sender.held]:
            steps = extend(self._lookout.claims, per_shard(held), int(LEASE_S * 1000))
            try:
                run(self._driver, steps, EXTEND_TIMEOUT_S)
            except ShardqError as exc:
                log.debug("leases of forwarded tasks could not be extended: %s", exc)
        return UPKEEP_S

    def _all(self) -> list[Sender]:
        with self._lock:
            return [*self._senders.values(), *self._former]

    # ---- the end

    def stop(self) -> None:
        """Tells all senders to end: none claims anything more."""
        self._unlearn()
        self.follow()
        with self._lock:
            self._upkeep.stop()
            self._lookout.stop()
        for sender in self._all():
            sender.stop()

    def join(self) -> None:
        """Returns when batches on their way are settled; after ``SENDING_S`` it interrupts those that are left, and
        after ``ENDING_S`` more it leaves those that do not return.
        """
        senders = self._all()
        deadline = time.monotonic() + SENDING_S
        for sender in senders:
            while sender.sending and sender.loop.is_alive and time.monotonic() < deadline:
                sender.loop.join(0.01)
        for sender in senders:
            if sender.loop.is_alive:
                sender.interrupt()
        self._pool.close()
        deadline = time.monotonic() + ENDING_S
        for sender in senders:
            sender.loop.join(max(0.0, deadline - time.monotonic()))
        self._lookout.close()
        ended([self._upkeep, self._pool.loop])

    def stats(self) -> tuple[SinkStats, ...]:
        """The counters of each topic that this process serves, by topic."""
        self.follow()
        with self._lock:
            return tuple(self._stats_of(topic, route) for topic, route in sorted(self._routes.items()))

    def _stats_of(self, topic: str, route: Route) -> SinkStats:
        sender = self._senders.get(topic)
        return SinkStats(topic=topic, to=route.shown) if sender is None else sender.stats()

    def report(self) -> tuple[tuple[SinkStats, ...], int]:
        """The counters of the topics that a report names, and the number of all that this process serves."""
        self.follow()
        with self._lock:
            seen = [sender.stats() for sender in self._senders.values()]
            quiet = (topic for topic in self._routes if topic not in self._senders)
            seen += [self._stats_of(topic, self._routes[topic]) for topic in itertools.islice(quiet, MOST_SINKS)]
            return first_sinks(seen), len(self._routes)

    def faults(self) -> tuple[RouteFault, ...]:
        """The routes that can't be served now."""
        with self._lock:
            seen = [sender.stats() for _, sender in sorted(self._senders.items())]
        failing = [each for each in seen if each.error and each.topic not in self._cache.topology.paused]
        return tuple(RouteFault(each.topic, each.to, each.error, ()) for each in failing)
