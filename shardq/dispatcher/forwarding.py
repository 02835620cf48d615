"""One poller's routes: what is ready of a routed topic goes on to its list, by the forward script or by the relay.

A list that refuses (something else has its name, or an ACL forbids it) holds back its own topic and no other: said
once in the log, shown in ``stats()``, tried again until it takes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable

from shardq.atlas import Atlas
from shardq.calls import dispatch
from shardq.calls.answers import Missing, Stale
from shardq.drivers.sync import Driver, Line
from shardq.errors import EngineClosed, ShardqError
from shardq.layout.keys import ShardKeys
from shardq.layout.slots import slot_of

log = logging.getLogger("shardq.dispatcher")

RETRY_S = 1.0
"""Before a list that refused is tried again: somebody has to change something first."""


class Forwarding:
    """For the poller's thread."""

    def __init__(
        self, driver: Driver, line: Line, atlas: Atlas, keys: ShardKeys, *, relay: Callable[[int], None], timeout: float
    ) -> None:
        self.error: str | None = None
        """Why a list is not served; None while all are."""
        self._driver = driver
        self._line = line
        self._atlas = atlas
        self._keys = keys
        self._relay = relay
        self._timeout = timeout
        self._epoch = 0
        self._open: set[str] = set()
        """Topics whose ready list may hold something."""
        self._refused: dict[str, float] = {}
        """Topic → when to try it again."""

    def serve(self, touched: Iterable[str], *, limit: int) -> float:
        """Forwards one batch of each topic that has something; answers in how many seconds there is more to do.

        ``touched``: topics that may have got something since.
        """
        topology = self._atlas.topology
        if topology.epoch != self._epoch:
            # whatever is ready already goes too, also what another process left there
            self._open, self._refused, self._epoch = set(topology.open_routes), {}, topology.epoch
        self._open.update(topology.open_routes.keys() & set(touched))
        wait = math.inf
        for topic in sorted(self._open):
            wait = min(wait, self._serve(topic, limit))
        if not self._refused:
            self.error = None
        return wait

    def _serve(self, topic: str, limit: int) -> float:
        route = self._atlas.topology.routes.get(topic)
        if route is None or (self._driver.is_cluster and slot_of(route.to) != self._keys.slot):
            self._open.discard(topic)
            if route is not None:
                self._relay(self._keys.shard)
            return math.inf
        now = time.monotonic()
        if (wait := self._refused.get(topic, now) - now) > 0:
            return wait
        call = dispatch.forward(self._keys, self._epoch, topic, to=route.to, side=route.side, limit=limit)
        try:
            left = self._line.call(call, timeout=self._timeout).left
        except (Stale, Missing, EngineClosed):
            raise
        except ShardqError as exc:
            if topic not in self._refused:
                log.error("shard %d can't forward %r to %r, trying on: %s", self._keys.shard, topic, route.to, exc)
            self._refused[topic] = now + RETRY_S
            self.error = f"{type(exc).__name__}: {exc}"
            return RETRY_S
        if self._refused.pop(topic, None) is not None:
            log.warning("shard %d forwards %r again", self._keys.shard, topic)
        if left:
            return 0.0
        self._open.discard(topic)
        return math.inf
