"""The senders of a process: one for each topic that is forwarded to something else than the engine's own servers, from
``start()`` to ``stop()`` of its dispatcher, which calls this.

A route to a function ends with the last process that serves it, and a process that has the function takes it up again.
A process that ends in order signs off first, and then looks at the fleet: of several that end together the last one
finds no other, and ends the route. The route of a process that was killed is ended by any dispatcher that has missed a
server of it for ``MISSED_S``. Either may err: a process may have begun to serve meanwhile, or have been silent. So the
topology keeps the name of the function, and every process that has it, and finds its route ended, takes it up. An
operator's end of the route, or another route, removes that name.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from shardq.core.consumer.claim_planner import ReadyCounts
from shardq.core.consumer.claims import Claims
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.dispatcher.forwarding import RouteFault
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.member import fleet, unforwarded
from shardq.core.fleet.report import SinkStats
from shardq.core.layout.topology import Route, Topology
from shardq.core.model.record import Codec, as_stored, decode_payload
from shardq.core.operation import Operation, run
from shardq.core.subscriber import Subscriber
from shardq.core.threads import Loop, ended
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError
from shardq.features.sinks.egress import Egress
from shardq.features.sinks.functions import BatchFunction
from shardq.features.sinks.sender import LEASE_S, Sender

log: logging.Logger = logging.getLogger("shardq.sinks")

UPKEEP_S = LEASE_S / 3

SENDING_S = 5.0
"""The time for batches that are on their way when the process ends. Without it each end would send tasks twice."""

MISSED_S = 10.0
"""The time without a server after which a route ends: longer than a dispatcher's silence lasts before it counts as
dead, and than a program takes to start again.
"""

CALL_TIMEOUT_S = 1.0

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
        self._lock = threading.Lock()
        self._senders: dict[str, Sender] = {}
        """Topic → its sender."""
        self._former: list[Sender] = []
        """Senders whose route has ended, and which may still settle their last batch."""
        self._wakeups: Wakeups | None = None
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
        self._unlearn = self._cache.on_change(lambda _: self.follow())
        self.follow()

    def follow(self) -> None:
        """Runs a sender for each route that this process can serve, and for no other."""
        with self._lock:
            if self._upkeep.stopping.is_set():
                return
            routes = self._served(self._cache.topology)
            for topic, sender in list(self._senders.items()):
                if routes.get(topic) == sender.route and self._function(topic, sender.route) is sender.function:
                    continue
                former = self._senders.pop(topic)
                former.stop()
                self._former = [sender for sender in [*self._former, former] if sender.loop.is_alive]
            for topic in routes.keys() - self._senders.keys():
                self._senders[topic] = sender = self._new_sender(topic, routes[topic])
                sender.loop.start()
                log.info("topic %r is forwarded to %s by this process", topic, sender.route.named)
            if self._senders or self._wanted():
                self._upkeep.start()
            self._upkeep.wake()

    def _served(self, topology: Topology) -> dict[str, Route]:
        """The routes that this process can serve: a function only where it is registered."""
        return {
            topic: route
            for topic, route in topology.routes.items()
            if not route.is_here and (not route.is_function or self._function(topic, route) is not None)
        }

    def _function(self, topic: str, route: Route) -> BatchFunction | None:
        """The function that is registered for this route. The topic may have gone elsewhere since."""
        registered = self._functions.get(topic)
        return registered[1] if registered is not None and registered[0].to == route.to else None

    def _new_sender(self, topic: str, route: Route) -> Sender:
        claims = Claims(
            self._cache,
            [topic],
            name=f"{socket.gethostname()[:32]}-{secrets.token_hex(6)}",
            lease_ms=int(LEASE_S * 1000),
            codec=self._codec,
            ready_counts=ReadyCounts(),
            route=route,
            decode=decode_payload if route.is_function else as_stored,
        )
        function = self._function(topic, route)
        return Sender(topic, route, function, self._driver, claims, self._open_wakeups, self._egress)

    def _open_wakeups(self, deadline: float) -> Wakeups:
        with self._lock:
            if self._wakeups is None:
                self._wakeups = Wakeups(self._driver, self._cache, self._subscriber)
                if self._upkeep.stopping.is_set():
                    self._wakeups.close()
            return self._wakeups

    def _keep(self) -> float:
        try:
            self._take_up()
            self._end_missed()
        except ShardqError as exc:  # the next time
            log.debug("routes to functions could not be looked at: %s", exc)
        if time.monotonic() >= self._extend_at:
            self._extend_at = time.monotonic() + UPKEEP_S
            for sender in self._all():
                sender.extend()
        return self._extend_at - time.monotonic()

    def _serving(self) -> set[str]:
        """The topics that this process serves."""
        with self._lock:
            return set(self._senders)

    def _all(self) -> list[Sender]:
        with self._lock:
            return [*self._senders.values(), *self._former]

    # ---- the end

    def stop(self) -> None:
        """Tells all senders to end: none claims anything more."""
        self._unlearn()
        with self._lock:
            self._upkeep.stop()
        for sender in self._all():
            sender.stop()

    def join(self) -> None:
        """Returns when batches on their way are settled; after ``SENDING_S`` it interrupts those that are left. Then
        ends the routes to functions that only this process has served; it is no member any more.
        """
        senders = self._all()
        deadline = time.monotonic() + SENDING_S
        for sender in senders:
            while sender.sending and sender.loop.is_alive and time.monotonic() < deadline:
                sender.loop.join(0.01)
        for sender in senders:
            if sender.loop.is_alive:
                sender.interrupt()
        with self._lock:
            wakeups, self._wakeups = self._wakeups, None
        if wakeups is not None:
            wakeups.close()
        ended([self._upkeep])
        self._end_own()

    def stats(self) -> tuple[SinkStats, ...]:
        """The counters of each sender, by topic."""
        with self._lock:
            return tuple(sender.stats() for _, sender in sorted(self._senders.items()))

    def faults(self) -> tuple[RouteFault, ...]:
        """The routes that can't be served now."""
        failing = [seen for seen in self.stats() if seen.error and seen.topic not in self._cache.topology.paused]
        return tuple(RouteFault(seen.topic, seen.to, seen.error, ()) for seen in failing)

    # ---- routes to functions

    def _wanted(self) -> bool:
        """True if there is a route to a function, or was."""
        topology = self._cache.topology
        return bool(self._functions) or any(route.is_function for route in topology.routes.values())

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
