"""Runs pollers for this process's share of the shards, as members come and go. Called by the engines' ``start``."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from shardq.core.calls.control import OF_A_FEATURE
from shardq.core.dispatcher.forwarder import Forwarder
from shardq.core.dispatcher.forwarding import RouteFault, RouteFaults
from shardq.core.dispatcher.membership import Membership
from shardq.core.dispatcher.poller import Lead, NodeClock, Poller, PollerReport
from shardq.core.dispatcher.sharing import share
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.lateness import Lateness, TopicLateness
from shardq.core.fleet.report import Report, RouteStats, by_topic, runs
from shardq.core.layout.topology import Topology
from shardq.core.resharding.lane_keeper import LaneKeeper
from shardq.core.resharding.migrator import Migrator
from shardq.core.subscriber import Subscriber
from shardq.core.threads import SideThread, ended
from shardq.core.topology_cache import TopologyCache

log: logging.Logger = logging.getLogger("shardq.dispatcher")


class RouteServer(Protocol):
    """Serves the routes that lead to anything but lists and streams here. ``stop`` tells it to end, ``join`` returns
    when it has ended, or after some seconds.
    """

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def join(self) -> None: ...

    def stats(self) -> tuple[RouteStats, ...]:
        """The counts of each route."""

    def facts(self) -> Mapping[str, Any]:
        """The facts that it adds to the report of its process."""

    def faults(self) -> tuple[RouteFault, ...]:
        """The routes that can't be served now."""


class Dispatcher:
    """The dispatcher of a process, started once and stopped once."""

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        subscriber: Subscriber,
        *,
        elsewhere: RouteServer | None = None,
        beside: Callable[[Dispatcher], Sequence[SideThread]] = lambda _: (),
    ) -> None:
        """``beside`` makes what starts and stops with it."""
        self.driver = driver
        self._elsewhere = elsewhere
        self._cache = cache
        self._lock = threading.Lock()
        """Held while the set of pollers changes: a heartbeat and a stop may come at once."""
        self._pollers: dict[int, Poller] = {}
        self._left: frozenset[int] = frozenset()
        """The shards of ``_pollers`` that this process can't reach, and another serves."""
        self.members: tuple[str, ...] = ()
        """The living dispatchers, as of the last heartbeat."""
        self._stopped = False
        self._subscriber = subscriber
        self._leads: defaultdict[str, Lead] = defaultdict(Lead)
        self._clocks: defaultdict[str, NodeClock] = defaultdict(NodeClock)
        self._since = time.time()
        self._topics_lateness, self._key_waits = TopicLateness(), TopicLateness()
        self._last_error = ""
        self._logged = set[str]()
        self._membership = Membership(
            driver,
            cache,
            self._rebalance,
            hears=lambda: subscriber.is_subscribed(cache.control.news),
            report=self._report,
            unreached=self._unreached,
        )
        self.process: str = self._membership.process
        """The name under which this process sends its heartbeats."""
        self.clock_ms: Callable[[], float] = self._membership.clock_ms
        self._faults = RouteFaults()
        self._forwarder = Forwarder(
            driver, cache, process=self.process, serves=lambda shard: shard in self._pollers, faults=self._faults
        )
        mine, members = (lambda: sorted(self._pollers)), (lambda: len(self.members))
        self._mover = Migrator(driver, cache, process=self.process, mine=mine, members=members)
        self._lanes = LaneKeeper(driver, cache, process=self.process, mine=mine, members=members)
        self.beside: tuple[SideThread, ...] = tuple(beside(self))
        self._unlearn = cache.on_change(self._topology_changed)

    def start(self, deadline: float) -> None:
        """Returns when this process is a member, and its pollers run. Raises why that is not so at the deadline."""
        self._subscriber.subscribe(self._cache.control.news, self._cache.control.slot, self._hear_news)
        try:
            self._membership.join(deadline)
            self._mover.topology_changed(self._cache.topology)
            self._lanes.topology_changed(self._cache.topology)
            for each in self.beside:
                each.loop.start()
            if self._elsewhere is not None:
                self._elsewhere.start()
                self._membership.loop.wake()  # to tell the fleet which topics it forwards
        except BaseException:
            self._subscriber.unsubscribe(self._cache.control.news, self._hear_news)
            self._unlearn()
            raise

    def stop(self) -> None:
        """Ends every thread, then signs off, so that the other dispatchers take over at once."""
        self._unlearn()
        if self._elsewhere is not None:
            self._elsewhere.stop()
        with self._lock:
            self._stopped = True
            pollers, self._pollers = list(self._pollers.values()), {}
        self._membership.stop()
        others = [self._forwarder.loop, self._mover.loop, self._lanes.loop, *(each.loop for each in self.beside)]
        for loop in others:
            loop.stop()
        self._tell_to_end(pollers)
        ended([self._membership.loop, *others, *(poller.loop for poller in pollers)])
        self._subscriber.unsubscribe(self._cache.control.news, self._hear_news)
        self._membership.leave()
        # last: others serve the shards while a batch is on its way
        if self._elsewhere is not None:
            self._elsewhere.join()

    def reports(self) -> dict[int, PollerReport]:
        """Shard → the report of its poller in this process."""
        with self._lock:
            pollers = list(self._pollers.values())
        return {poller.keys.shard: poller.report() for poller in pollers}

    def lateness(self) -> Mapping[str, Lateness]:
        """Topic → the lateness of the tasks without a key that this process dispatched."""
        return self._topics_lateness.snapshot()

    def key_waits(self) -> Mapping[str, Lateness]:
        """Topic → how long the tasks with a key that this process dispatched had waited, from their due time on."""
        return self._key_waits.snapshot()

    def _report(self, alive_s: float) -> Report:
        """This process's report to the fleet."""
        reports = self.reports()
        elsewhere = self._elsewhere
        errors = [report.error or "" for report in reports.values()]
        errors += (fault.error for fault in (elsewhere.faults() if elsewhere else ()))
        self._last_error = next(filter(None, errors), self._last_error)
        lateness, waits = self.lateness(), self.key_waits()
        return Report(
            since=self._since,
            alive_s=alive_s,
            shards=runs(reports.keys() - self._left),
            dispatched=sum(each.count for each in (*lateness.values(), *waits.values())),
            error=self._last_error,
            dispatch=by_topic(lateness),
            key_wait=by_topic(waits),
            **(elsewhere.facts() if elsewhere else {}),
            **{name: fact for each in self.beside for name, fact in each.facts().items()},
        )

    def _unreached(self) -> list[int]:
        with self._lock:
            return [shard for shard, poller in self._pollers.items() if poller.is_cut_off]

    @property
    def problem(self) -> str:
        """The reason why this process knows no newer topology, although there is one; empty without one."""
        return self._membership.problem

    def failing_routes(self) -> tuple[RouteFault, ...]:
        """The routes that this process can't serve now."""
        with self._lock:
            mine = list(self._pollers)
        return self._faults.shown(self._cache.topology, mine) + (self._elsewhere.faults() if self._elsewhere else ())

    def sent_elsewhere(self) -> tuple[RouteStats, ...]:
        """The counters of the topics whose routes lead elsewhere, as this process has served them."""
        return self._elsewhere.stats() if self._elsewhere is not None else ()

    def _hear_news(self, message: str | None) -> None:
        for each in self.beside:
            each.hear(message)
        if OF_A_FEATURE not in (message or ""):
            self._membership.loop.wake()

    def _tell_to_end(self, pollers: list[Poller]) -> None:
        for poller in pollers:
            poller.stop()
            self._subscriber.unsubscribe(poller.keys.bell, poller.rung)

    def _topology_changed(self, topology: Topology) -> None:
        self._mover.topology_changed(topology)
        self._lanes.topology_changed(topology)
        self._membership.loop.wake()
        with self._lock:
            self._faults.keep(topology, self._pollers)
            for poller in self._pollers.values():
                poller.loop.wake()

    def _rebalance(self, members: tuple[str, ...], unreached: Mapping[str, Collection[int]]) -> None:
        """Serves exactly this process's share of the shards. Called after each heartbeat."""
        self._mover.heartbeat_sent()
        if members != self.members:
            self.members = members
            for each in self.beside:
                each.members_changed()
        span = self._cache.topology.span()
        mine, left = share(self.process, members, unreached, len(span))
        if left - self._left:
            log.warning("other dispatchers serve shards that this process can't reach: %s", sorted(left))
        elif self._left and not left and not unreached.get(self.process):
            log.warning("this process reaches its shards again, and serves them alone")
        self._left = left
        with self._lock:
            if self._stopped or mine == self._pollers.keys():
                return
            gone = [self._pollers.pop(shard) for shard in self._pollers.keys() - mine]
            self._faults.keep(self._cache.topology, mine)
            for shard in sorted(mine - self._pollers.keys()):
                # listed before it starts: the forwarder forwards nothing of shards without a poller here
                self._pollers[shard] = poller = self._new_poller(shard)
                self._subscriber.subscribe(poller.keys.bell, poller.keys.slot, poller.rung)
                poller.loop.start()
        log.info("serving %d of %d shards; dispatchers: %d", len(mine), len(span), len(members))
        self._tell_to_end(gone)
        ended(poller.loop for poller in gone)

    def _new_poller(self, shard: int) -> Poller:
        keys = self._cache.keys(shard)
        return Poller(
            self.driver,
            self._cache,
            keys,
            is_subscribed=lambda: self._subscriber.is_subscribed(keys.bell),
            rouse=self._forwarder.rouse,
            faults=self._faults,
            leads=self._leads,
            clocks=self._clocks,
            topics_lateness=self._topics_lateness,
            key_waits=self._key_waits,
            logged=self._logged,
        )
