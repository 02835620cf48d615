"""Forwarding that takes more than the shard's own slot: to a list in another slot of a cluster, and within a rate.

No script can reach another slot: claim here, push there, acknowledge here. A crash between the push and the
acknowledgement repeats the payload when the lease runs out: at least once. A topic with a rate gets permits first, from
the slot of the whole, for all its shards together, and then goes by the script where that reaches the list.

One thread for the process, woken by the pollers with what dispatch says is ready, in rounds: at most one batch of each
topic in each shard. A batch that its list does not take is *held*: tried again now and then, its leases extended, so
that an outage there uses up nobody's attempts; meanwhile nothing more is claimed for that list, and the others go on.
When the route changes, when another process takes the shard over, and when the relay stops, what is held goes back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardq.calls import consume, dispatch, limits
from shardq.calls.answers import Missing, Stale
from shardq.calls.request import Call, Command
from shardq.dispatcher.faults import RouteFaults
from shardq.drivers.sync import Driver
from shardq.errors import ServerFault, ShardqError, Unanswered, Unavailable
from shardq.layout.keys import ShardKeys
from shardq.layout.slots import slot_of
from shardq.layout.topology import Limit, Route, Topology
from shardq.model.record import encoded_payload
from shardq.operation import run
from shardq.recovery import call_shard, refresh
from shardq.topology_cache import TopologyCache

log = logging.getLogger("shardq.relay")

T = TypeVar("T")

BATCH = 256
"""Payloads of one trip: some 30 kB of ordinary ones, in well under a millisecond of the destination."""

LEASE_S = 30.0
RETRY_S = 1.0
CALL_TIMEOUT_S = 2.0
"""The time that one silent node can cost the other lists in a round; well below the lease, so that it can be
extended between two tries."""

PACE_S = 0.05
"""Between two askings for permits of a topic. A bucket holds a tenth of a second's worth, so none is lost by it."""

Place = tuple[int, str]
"""One ready list: shard and topic."""


def reaches(driver: Driver, route: Route, keys: ShardKeys) -> bool:
    """True if the forward script of this shard can write to the route's list."""
    return not driver.is_cluster or slot_of(route.to) == keys.slot


def is_relayed(driver: Driver, topology: Topology, topic: str, keys: ShardKeys) -> bool:
    """True if a routed topic is the relay's in this shard, not the poller's own."""
    return topic in topology.limits or not reaches(driver, topology.routes[topic], keys)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some payloads of one topic in one shard, under lease."""

    keys: ShardKeys
    topic: str
    route: Route
    acks: list[consume.SettleAck]
    payloads: list[bytes]


@dataclass(frozen=True, slots=True)
class _Held:
    """A batch that its list did not take."""

    batch: _Batch
    why: ShardqError


class Relay:
    """Serves the routes that a poller's forward script alone can't, in the shards that this process serves."""

    def __init__(
        self, driver: Driver, cache: TopologyCache, *, process: str, serves: Callable[[int], bool], faults: RouteFaults
    ) -> None:
        self._driver = driver
        self._cache = cache
        self._process = process
        self._serves = serves
        self._faults = faults
        self._lock = threading.Lock()
        self._told: set[Place] = set()
        """Ready lists that pollers named since the last round."""
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._claims = 0
        self._turn = 0
        self._open: set[Place] = set()
        """Ready lists that may have something."""
        self._held: dict[str, _Held] = {}
        """List → the batch that it did not take."""
        self._again: dict[str | int | Place | tuple[str, str], float] = {}
        """List, shard or place that failed, and ("rate", topic) without permits → when to try again."""
        self._unasked: dict[str, list[int]] = {}
        """Topic → the shards it fails in because nobody could be asked for permits."""
        self.thread: threading.Thread | None = None

    def rouse(self, shard: int, topics: Sequence[str]) -> None:
        """Something of these topics is ready there. The first call starts the thread."""
        with self._lock:
            self._told.update((shard, topic) for topic in topics)
            if self.thread is None and not self._stopping.is_set():
                self.thread = threading.Thread(target=self._run, name="shardq-relay", daemon=True)
                self.thread.start()
        self._news.set()

    def stop(self) -> None:
        """Tells the thread to end. Behind it, the thread has started, or never does."""
        with self._lock:
            self._stopping.set()
        self._news.set()

    def _run(self) -> None:
        wait: float | None = 0.0
        while not self._stopping.is_set():
            self._news.wait(wait)
            self._news.clear()
            with self._lock:
                self._open |= self._told
                self._told = set()
            try:
                wait = 0.0 if self._round() else self._patience()
            except Exception:
                log.exception("the relay met an error it does not know, trying on")
                wait = RETRY_S
        for held in self._held.values():
            self._give_back(held.batch)

    def _patience(self) -> float | None:
        """The time until something that failed is tried again; None: until a poller names a list."""
        return max(0.0, min(self._again.values()) - time.monotonic()) if self._again else None

    def _round(self) -> bool:
        """Once over everything; says whether there is more to do at once."""
        now = time.monotonic()
        self._again = {what: at for what, at in self._again.items() if at > now}
        topology = self._cache.topology
        routes = topology.open_routes
        for to, held in list(self._held.items()):
            if routes.get(held.batch.topic) != held.batch.route or not self._serves(held.batch.keys.shard):
                del self._held[to]
                self._again.pop(to, None)
                self._give_back(held.batch)
            elif to not in self._again:
                self._send(held.batch)
        self._open = {
            (shard, topic)
            for shard, topic in self._open
            if topic in routes
            and self._serves(shard)
            and is_relayed(self._driver, topology, topic, self._cache.keys(shard))
        }
        more = False
        for topic in sorted({topic for _, topic in self._open}):
            if self._stopping.is_set():
                break
            more |= self._serve(topic, topology)
        return more

    def _serve(self, topic: str, topology: Topology) -> bool:
        """One batch of the topic from each shard that may have some. Says whether there is more to do at once."""
        route, limit = topology.routes[topic], topology.limits.get(topic)
        shards = [
            shard
            for shard, other in sorted(self._open)
            if other == topic and shard not in self._again and (shard, topic) not in self._again
        ]
        if limit is not None and limit.rate is not None:
            if not shards or ("rate", topic) in self._again or self._is_held(topic, route, shards):
                return False
            return self._serve_limited(topic, route, limit.rate, shards)
        more = False
        for shard in shards:
            if self._stopping.is_set() or self._is_held(topic, route, [shard]):
                continue
            _, left = self._forward(topic, route, shard, BATCH)
            more |= left > 0
        return more

    def _serve_limited(self, topic: str, route: Route, rate: float, shards: list[int]) -> bool:
        """Forwards as many as there are permits for, from the shards in turns. Returns True if there is more to do at
        once.
        """
        ready: dict[int, int] = {}
        for shard in shards:
            try:
                length = consume.length(self._cache.keys(shard), topic, retry_for_s=CALL_TIMEOUT_S)
                ready[shard] = self._driver.call(length, timeout=CALL_TIMEOUT_S)
            except ShardqError as exc:
                self._failed(topic, route, shard, exc)
                continue
            if not ready[shard]:
                self._done(topic, route, shard)
        want = min(sum(ready.values()), limits.MAX_PERMITS)
        permits = rest = self._permits(topic, route, rate, want, shards)
        more = sum(ready.values()) > want
        # a shard that comes first in every round would leave the others nothing
        self._turn += 1
        first = self._turn % len(shards)
        for shard in [*shards[first:], *shards[:first]]:
            most = min(rest, ready.get(shard, 0))
            if most and not self._stopping.is_set() and not self._is_held(topic, route, [shard]):
                taken, left = self._forward(topic, route, shard, most)
                rest -= taken
                more |= left > 0
        self._unused(topic, rest)
        return more and permits == want

    def _unused(self, topic: str, permits: int) -> None:
        """Back with permits that were not used."""
        if permits:
            try:
                call = limits.release(self._cache.control, topic, (), unused=permits)
                self._driver.call(call, timeout=CALL_TIMEOUT_S)
            except ShardqError as exc:
                log.debug("%d permits of %r could not be given back: %s", permits, topic, exc)

    def _permits(self, topic: str, route: Route, rate: float, want: int, shards: list[int]) -> int:
        if not want:
            return 0
        call = limits.permit(
            self._cache.control,
            self._cache.topology.epoch,
            topic,
            Limit(rate=rate),
            want,
            lease_ms=int(LEASE_S * 1000),
            prefix=f"{self._token()}:",
        )
        try:
            permit = self._driver.call(call, timeout=CALL_TIMEOUT_S)
            for shard in self._unasked.pop(topic, ()):
                self._faults.works(topic, route, shard)
            if permit.granted < want:
                self._again["rate", topic] = time.monotonic() + max(PACE_S, permit.again_ms / 1000)
            return permit.granted
        except (Stale, Missing):
            # the limits may have changed: none for now, and the next round knows them
            self._again["rate", topic] = time.monotonic() + PACE_S
            with contextlib.suppress(ShardqError):
                run(self._driver, refresh(self._cache), CALL_TIMEOUT_S)
        except ShardqError as exc:
            self._again["rate", topic] = time.monotonic() + RETRY_S
            self._unasked[topic] = shards
            for shard in shards:
                self._faults.failed(topic, route, shard, exc, said=self._is_said(exc))
        return 0

    def _is_held(self, topic: str, route: Route, shards: Sequence[int]) -> bool:
        """True while the list does not take what it was given before."""
        held = self._held.get(route.to)
        if held is None:
            return False
        for shard in shards:
            self._faults.failed(topic, route, shard, held.why, said=self._is_said(held.why))
        return True

    def _forward(self, topic: str, route: Route, shard: int, most: int) -> tuple[int, int]:
        """At most so many payloads of a shard; answers how many it took, and how many are left to be taken at once."""
        keys = self._cache.keys(shard)
        try:
            if reaches(self._driver, route, keys):
                done = self._on(
                    keys,
                    lambda keys, epoch: dispatch.forward(keys, epoch, topic, to=route.to, side=route.side, limit=most),
                )
                taken, left = done.sent, done.left
            else:
                batch, left = self._claim(keys, topic, route, min(most, BATCH))
                taken = len(batch.payloads)
                if batch.payloads:
                    self._send(batch)
        except ShardqError as exc:
            self._failed(topic, route, shard, exc)
            # they may have gone: then their permits are used
            return most if isinstance(exc, Unanswered) else 0, 0
        if route.to in self._held or shard in self._again:
            return taken, 0
        if left:
            self._faults.works(topic, route, shard)
        else:
            self._done(topic, route, shard)
        return taken, left

    def _done(self, topic: str, route: Route, shard: int) -> None:
        """Nothing is left there."""
        self._open.discard((shard, topic))
        self._faults.works(topic, route, shard)

    def _claim(self, keys: ShardKeys, topic: str, route: Route, most: int) -> tuple[_Batch, int]:
        token = self._token()
        claim = self._on(
            keys,
            lambda keys, epoch: consume.claim(
                keys, epoch, {topic: most}, max=most, lease_ms=int(LEASE_S * 1000), token=token
            ),
        )
        acks = [consume.SettleAck(task.id, token) for task in claim.tasks]
        return _Batch(keys, topic, route, acks, [encoded_payload(task.record) for task in claim.tasks]), claim.left[0]

    def _token(self) -> str:
        """A lease's name, or the beginning of permits' names, never used before."""
        self._claims += 1
        return f"{self._process}:relay:{self._claims}"

    def _send(self, batch: _Batch) -> None:
        """To its list and done; or held."""
        to = batch.route.to
        verb = "LPUSH" if batch.route.side == "left" else "RPUSH"
        command: Command[int] = Command(slot=slot_of(to), words=(verb, to, *batch.payloads), decode=int)
        try:
            self._driver.call(command, timeout=CALL_TIMEOUT_S)
        except ShardqError as exc:
            self._held[to] = _Held(batch, exc)
            self._again[to] = time.monotonic() + RETRY_S
            # looked at again when the list takes it, and then found well
            self._open.add((batch.keys.shard, batch.topic))
            self._faults.failed(batch.topic, batch.route, batch.keys.shard, exc, said=self._is_said(exc))
            self._tell(batch, lambda keys, epoch: consume.extend(keys, epoch, batch.acks, lease_ms=int(LEASE_S * 1000)))
            return
        self._held.pop(to, None)
        self._again.pop(to, None)
        self._faults.works(batch.topic, batch.route, batch.keys.shard)
        self._tell(batch, lambda keys, epoch: consume.settle(keys, epoch, batch.acks))

    def _give_back(self, batch: _Batch) -> None:
        if batch.topic in self._cache.topology.limits:
            self._unused(batch.topic, len(batch.acks))
        backs = [consume.SettleGiveBack(ack.id, ack.token) for ack in batch.acks]
        self._tell(batch, lambda keys, epoch: consume.settle(keys, epoch, (), backs))

    def _tell(self, batch: _Batch, make: Callable[[ShardKeys, int], Call[T]]) -> None:
        """Tells the shard what became of its batch. If it can't be told the leases run out: at least once."""
        try:
            self._on(batch.keys, make)
        except ShardqError as exc:
            self._open.add((batch.keys.shard, batch.topic))
            self._failed(batch.topic, batch.route, batch.keys.shard, exc)

    def _on(self, keys: ShardKeys, make: Callable[[ShardKeys, int], Call[T]]) -> T:
        return run(self._driver, call_shard(self._cache, lambda: keys, make), CALL_TIMEOUT_S)

    def _failed(self, topic: str, route: Route, shard: int, exc: ShardqError) -> None:
        """A node that does not answer holds back all topics of the shard; whatever else it is, this one."""
        of_the_node = isinstance(exc, (Unavailable, Unanswered))
        self._again[shard if of_the_node else (shard, topic)] = time.monotonic() + RETRY_S
        self._faults.failed(topic, route, shard, exc, said=self._is_said(exc))

    def _is_said(self, exc: ShardqError) -> bool:
        """True where the log says of the whole node that it fails, or at the end, when nobody needs to know."""
        covered = isinstance(exc, ServerFault) and self._driver.outages.covers(exc.node, exc)
        return covered or self._stopping.is_set()
