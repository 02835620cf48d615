"""The senders of a process: one for each topic that is forwarded to something else than the engine's own servers, made
for its first task. From ``start()`` to ``stop()`` of its dispatcher, which calls this.

A route to a function ends with the last process that serves it, and a process that has the function takes it up again.
A process that ends in order signs off first, and then looks at the fleet: of several that end together the last one
finds no other, and ends the route. The route of a process that was killed is ended by any dispatcher that has missed a
server of it for ``MISSED_S``. Either may err: a process may have begun to serve meanwhile, or have been silent. So the
topology keeps the name of the function, and every process that has it, and finds its route ended, takes it up. An
operator's end of the route, or another route, removes that name.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from shardq.core.consumer.claims import Claims
from shardq.core.consumer.settling import extend, per_shard
from shardq.core.dispatcher.forwarding import RouteFault
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.member import fleet, unforwarded
from shardq.core.fleet.report import MOST_SINKS, SinkStats, first_sinks
from shardq.core.layout.topology import Route, Topology
from shardq.core.model.record import Codec, as_stored, decode_payload
from shardq.core.operation import Operation, run
from shardq.core.subscriber import Subscriber
from shardq.core.threads import Loop, ended
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError
from shardq.features.sinks.egress import Egress
from shardq.features.sinks.functions import BatchFunction
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

MISSED_S = 10.0
"""The time without a server after which a route ends: longer than a dispatcher's silence lasts before it counts as
dead, and than a program takes to start again.
"""

CALL_TIMEOUT_S = 1.0
EXTEND_TIMEOUT_S = 5.0

Functions = Mapping[str, tuple[Route, BatchFunction]]
"""Topic → the route and the function that this process has registered."""

Edit = Callable[[Callable[[Topology], Topology]], Operation[Topology]]
"""Publishes an edited topology."""


class Senders:
    """Starts and stops senders as routes come and go."""

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        subscriber: Subscriber,
        *,
        codec: Codec,
        functions: Functions,
        edit: Edit,
        egress: Egress,
    ) -> None:
        self._driver = driver
        self._cache = cache
        self._subscriber = subscriber
        self._codec = codec
        self._functions = functions
        self._edit = edit
        self._egress = egress
        self._missed: dict[str, tuple[Route, float]] = {}
        """Topic → the route that no process serves, and since when."""
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
            codec=codec,
            lease_ms=int(LEASE_S * 1000),
            follow=self.follow,
            served=lambda: list(self._routes),
            rouse=self._rouse,
        )
        self._extend_at = 0.0
        self._upkeep = Loop(
            "shardq-sinks-upkeep",
            self._keep,
            log,
            fails="the upkeep of forwarded topics fails, trying again",
            works="the upkeep of forwarded topics works again",
        )
        """Extends leases, and ends or takes up routes to functions; from the first time on that there is any."""
        self._unlearn: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._unlearn = self._cache.on_change(lambda _: self._begin())
        self._begin()

    def _begin(self) -> None:
        """Starts what serves routes, if there are any, or has it follow a new topology."""
        if any(not route.is_here for route in self._cache.topology.routes.values()) or self._functions or self._routes:
            with self._lock:
                if self._upkeep.stopping.is_set():
                    return
                self._lookout.start()
                self._pool.loop.start()
                self._upkeep.start()
            self._lookout.loop.wake()
            self._upkeep.wake()

    def function_changed(self, topic: str) -> None:
        """Goes by the function that this process has for the topic now."""
        with self._lock:
            route = self._routes.get(topic)
            sender = self._senders.get(topic)
            if sender is not None and route is not None and self._function(topic, route) is not sender.function:
                self._end_sender(topic)
            self._followed = None
        self._begin()

    def follow(self) -> None:
        """Serves the routes of the present topology that this process can serve, and no other."""
        for topic, route in self._new_routes().items():
            log.info("topic %r is forwarded to %s by this process", topic, route.named)
            if not route.is_function:
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
                if route is not None and not self._can_serve(topic, route):
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

    def _can_serve(self, topic: str, route: Route) -> bool:
        """True for every URL; for a function where it is registered."""
        return not route.is_here and (not route.is_function or self._function(topic, route) is not None)

    def _function(self, topic: str, route: Route) -> BatchFunction | None:
        """The function that is registered for this route. The topic may have gone elsewhere since."""
        registered = self._functions.get(topic)
        return registered[1] if registered is not None and registered[0].to == route.to else None

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
            codec=self._codec,
            ready_counts=lookout.claims.ready_counts,
            route=route,
            decode=decode_payload if route.is_function else as_stored,
        )
        claims.waiter, claims.limiter.wakeups = lookout.waiter, lookout.wakeups
        return Sender(
            topic, route, self._function(topic, route), self._driver, claims, lookout, self._pool, self._egress
        )

    def _keep(self) -> float:
        try:
            self._take_up()
            self._end_missed()
        except ShardqError as exc:  # the next time
            log.debug("routes to functions could not be looked at: %s", exc)
        if time.monotonic() >= self._extend_at:
            self._extend_at = time.monotonic() + UPKEEP_S
            self._extend()
        return self._extend_at - time.monotonic()

    def _extend(self) -> None:
        """Extends the leases of what is on its way."""
        if held := [delivery for sender in self._all() for delivery in sender.held]:
            steps = extend(self._lookout.claims, per_shard(held), int(LEASE_S * 1000))
            try:
                run(self._driver, steps, EXTEND_TIMEOUT_S)
            except ShardqError as exc:
                log.debug("leases of forwarded tasks could not be extended: %s", exc)

    def _serving(self) -> set[str]:
        """The topics that this process serves."""
        self.follow()
        with self._lock:
            return set(self._routes)

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
        after ``ENDING_S`` more it leaves those that do not return. Then it ends the routes to functions that only this
        process has served; it is no member any more.
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
        self._end_own()

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

    # ---- routes to functions

    def _end_own(self) -> None:
        """Ends the routes that only this process has served; it has signed off."""
        mine = self._ending(self._serving())
        if not mine:
            return
        try:
            members = run(self._driver, fleet(self._cache.control), CALL_TIMEOUT_S)
            gone = {topic: mine[topic] for topic in unforwarded(members, mine)}
            self._end(gone)
        except ShardqError as exc:
            log.warning("the routes of topics %s to functions of this process remain: %s", sorted(mine), exc)

    def _ending(self, topics: Collection[str]) -> dict[str, Route]:
        """The routes of these topics that end with their processes."""
        routes = self._cache.topology.routes
        return {
            topic: route
            for topic in topics
            if (route := routes.get(topic)) is not None and route.is_function and not route.keep
        }

    def _take_up(self) -> None:
        """Takes up the routes of this process that have ended."""

        def edit(topology: Topology) -> Topology:
            return topology.with_topics(
                {
                    topic: msgspec.structs.replace(topology.settings_of(topic), route=route, ended="")
                    for topic, (route, _) in list(self._functions.items())
                    if topic not in topology.routes and topology.ended.get(topic) == route.to
                }
            )

        known = self._cache.topology
        if edit(known) != known:
            run(self._driver, self._edit(edit), CALL_TIMEOUT_S)

    def _end_missed(self) -> None:
        """Ends routes that no process has served for some time."""
        now = time.monotonic()
        others = self._ending(self._cache.topology.routes.keys() - self._serving())
        if not others:
            self._missed = {}
            return
        members = run(self._driver, fleet(self._cache.control), CALL_TIMEOUT_S)
        before, self._missed = self._missed, {}
        for topic in unforwarded(members, others):
            route, since = before.get(topic, (others[topic], now))
            self._missed[topic] = (route, since) if route == others[topic] else (others[topic], now)
        gone = {topic: route for topic, (route, since) in self._missed.items() if now - since >= MISSED_S}
        self._end(gone)
        text = "topic %r is no longer forwarded to %s: no running process has it; its tasks are for consumers again"
        for topic, route in gone.items():
            log.warning(text, topic, route.named, extra={"topic": topic})

    def _end(self, gone: Mapping[str, Route]) -> None:
        def edit(topology: Topology) -> Topology:
            return topology.with_topics(
                {
                    topic: msgspec.structs.replace(topology.settings_of(topic), route=None, ended=route.to)
                    for topic, route in gone.items()
                    if topology.routes.get(topic) == route
                }
            )

        if gone:
            run(self._driver, self._edit(edit), CALL_TIMEOUT_S)
