"""Functions of this process as sinks, and the lives of routes to them: such a route ends with the last process that
serves it, and a process that has the function takes it up again. Called by ``senders``.

A process that ends in order signs off first, and then looks at the fleet: of several that end together the last one
finds no other, and ends the route. The route of a process that was killed is ended by any dispatcher that has missed a
server of it for ``MISSED_S``. Either may err: a process may have begun to serve meanwhile, or have been silent. So the
topology keeps the name of the function, and every process that has it, and finds its route ended, takes it up. An
operator's end of the route, or another route, removes that name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from shardq.core.consumer.policy import Bury, alone, reason_of
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.member import fleet, unforwarded
from shardq.core.layout.topology import Route, Topology
from shardq.core.model.task import Delivery
from shardq.core.operation import Operation, run
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError
from shardq.features.sinks.base import SENT, Failed, Refused, Result, Sink, Unsent

log = logging.getLogger("shardq.sinks")

MISSED_S = 10.0
"""The time without a server after which a route ends: longer than a dispatcher's silence lasts before it counts as
dead, and than a program takes to start again.
"""

CALL_TIMEOUT_S = 1.0

BatchFunction = Callable[[list[Delivery]], Any]
"""Takes deliveries. Returns None when it has taken all; or a list with None, or an exception, for each."""

Functions = Mapping[str, tuple[Route, BatchFunction]]
"""Topic → the route and the function that this process has registered."""

Edit = Callable[[Callable[[Topology], Topology]], Operation[Topology]]
"""Publishes an edited topology."""


class FunctionRoutes:
    """Used by one thread at a time."""

    def __init__(self, driver: Driver, cache: TopologyCache, functions: Functions, edit: Edit) -> None:
        self._driver = driver
        self._cache = cache
        self._functions = functions
        self._edit = edit
        self._missed: dict[str, tuple[Route, float]] = {}
        """Topic → the route that no process serves, and since when."""

    def wanted(self) -> bool:
        """True if there is a route to a function, or was."""
        topology = self._cache.topology
        return bool(self._functions) or any(route.is_function for route in topology.routes.values())

    def keep_up(self, serving: Collection[str]) -> None:
        """Takes up the routes of this process that have ended, and ends those that no process has served for some time.
        ``serving``: the topics that this process serves.
        """
        try:
            self._take_up()
            self._end_missed(serving)
        except ShardqError as exc:  # the next time
            log.debug("routes to functions could not be looked at: %s", exc)

    def end(self, serving: Collection[str]) -> None:
        """Ends the routes that only this process has served; it has signed off."""
        mine = self._ending(serving)
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
        def edit(topology: Topology) -> Topology:
            mine = {
                topic: route
                for topic, (route, _) in list(self._functions.items())
                if topic not in topology.routes and topology.ended.get(topic) == route.to
            }
            ended = {topic: to for topic, to in topology.ended.items() if topic not in mine}
            return msgspec.structs.replace(topology, routes={**topology.routes, **mine}, ended=ended)

        known = self._cache.topology
        if edit(known) != known:
            run(self._driver, self._edit(edit), CALL_TIMEOUT_S)

    def _end_missed(self, serving: Collection[str]) -> None:
        now = time.monotonic()
        others = self._ending(self._cache.topology.routes.keys() - serving)
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
            still = {topic: route.to for topic, route in gone.items() if topology.routes.get(topic) == route}
            routes = {topic: route for topic, route in topology.routes.items() if topic not in still}
            return msgspec.structs.replace(topology, routes=routes, ended={**topology.ended, **still})

        if gone:
            run(self._driver, self._edit(edit), CALL_TIMEOUT_S)


class FunctionSink(Sink):
    """Calls a function with a batch of deliveries. Where it raises for several, the sender calls it again for each."""

    takes_deliveries = True

    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def send(self, batch: Sequence[Any]) -> Sequence[Result]:
        try:
            answers = self._function(list(batch))
        except BaseException as exc:  # noqa: BLE001  the user's code may raise anything, and the sender goes on
            return self._of_all(_result(exc), len(batch))
        if answers is None:
            return [SENT] * len(batch)
        if not isinstance(answers, list | tuple) or len(answers) != len(batch):
            text = f"the function returned {type(answers).__name__}; return None, or a list of one for each delivery"
            return self._of_all(Failed(text), len(batch))
        return [SENT if answer is None else _result(answer) for answer in answers]

    def _of_all(self, result: Refused | Failed | Unsent, count: int) -> list[Result]:
        return [result] if count == 1 else [Unsent(result.reason)] * count


def _result(answer: object) -> Refused | Failed | Unsent:
    if not isinstance(answer, BaseException):
        return Failed(f"the function answered {type(answer).__name__} for it; answer None, or an exception")
    exc = alone(answer)
    if isinstance(exc, Bury):
        return Refused(exc.reason)
    if isinstance(exc, OSError):  # also ConnectionError and TimeoutError
        return Unsent(reason_of(exc))
    return Failed(reason_of(exc))
