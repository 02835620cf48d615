"""Forwards tasks where the shard's own slot is not enough: to a list or a stream in another slot of a cluster, and
within a rate. One thread serves the process; pollers wake it with the topics that have ready tasks.

No script can reach another slot. So the forwarder claims tasks, pushes their payloads to the list, waits for the
replicas of the list's master, and acknowledges the tasks: else a failover there would lose what is safe here. A crash
before the acknowledgement repeats the payloads when the leases run out: at least once. A topic with a rate
needs permits first, which the control slot gives out for all shards together; then the forward script does the rest
where it reaches the list.

In each round it forwards at most one batch of each topic in each shard. A batch that its list refuses is *held*: it is
tried again, and its leases are extended, so that an outage of the list uses up no attempts. Meanwhile nothing more is
claimed for that list. A held batch is given back when the route changes, when another process takes over the shard, and
at the forwarder's end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardq.core.calls import consume, dispatch, node_info
from shardq.core.calls.dispatch import Entry, append
from shardq.core.dispatcher.forwarding import RouteFaults, needs_forwarder, reaches
from shardq.core.drivers.replica_tracker import REMEMBERED_S, WAIT_MS
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.slots import slot_of
from shardq.core.layout.topology import Limit, Route, Topology
from shardq.core.layout.words import shown_id
from shardq.core.model.record import UNREADABLE, UnreadableRecord, encoded_parts
from shardq.core.operation import run
from shardq.core.threads import Loop
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import REFUSALS, Make, call_shard
from shardq.core.topology_upkeep import refresh
from shardq.errors import AccessDenied, ServerFault, ShardqError, Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.dispatcher")

T = TypeVar("T")

BATCH = 256
"""Payloads of one trip: about 30 kB in all, which the list's server takes in well under a millisecond."""

LEASE_S = 30.0
RETRY_S = 1.0
CALL_TIMEOUT_S = 2.0
"""One silent node can cost the other lists this much in a round. Well below the lease, which is extended between two
tries."""

PACE_S = 0.05
"""The least time between two requests for permits of a topic. A bucket holds permits of a tenth of a second, so none is
lost."""

Place = tuple[int, str]
"""One ready list: shard and topic."""


Mark = tuple[int, str]
"""The number of a connection, and the replication history that the server at its other end wrote."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Leased tasks of one topic in one shard, with what is appended."""

    keys: ShardKeys
    topic: str
    route: Route
    acks: list[consume.SettleAck]
    entries: list[Entry]
    appended: Mark | None = None
    """Where it was appended. While that is so, only the replicas are asked again."""


class _List:
    """A list or stream in another slot, on a connection of its own: WAIT is about the writes of its connection."""

    def __init__(self, driver: Driver, route: Route) -> None:
        self._slot = slot_of(route.key)
        self._connection = driver.dedicated(self._slot)
        self._had: tuple[str, int, float] = "", 0, 0.0
        """The history of its master, how many replicas that had at most lately, and when it had them last."""

    def append(self, batch: _Batch) -> None:
        """Appends a batch, and returns when all replicas have it. Raises Unavailable if that can't be said, and
        appends it again after that only if the connection or the history is another one.
        """
        route = batch.route
        mark, replicas, wanted = self._looked()
        if replicas < wanted:
            raise self._behind(replicas, wanted)
        if batch.appended != mark:
            batch.appended = None
            call = append(route.key, route.way, batch.entries, route.maxlen)
            self._connection.call(call, timeout=CALL_TIMEOUT_S)
            # On another connection it may have been written to another history: that is found next time.
            batch.appended = mark
        reached = self._reached(wanted) if wanted else 0
        now = self._looked()[0] if wanted else (self._connection.connects, mark[1])
        if reached < wanted or now != mark:
            raise self._behind(reached, wanted)

    def close(self) -> None:
        self._connection.close()

    def _looked(self) -> tuple[Mark, int, int]:
        """Where the next write goes to, how many replicas follow there, and how many have to have it."""
        try:
            lineage = self._connection.call(node_info.lineage(self._slot), timeout=CALL_TIMEOUT_S)
        except AccessDenied:
            return (self._connection.connects, ""), 0, 0
        now, (history, most, at) = time.monotonic(), self._had
        if history != lineage.history or lineage.replicas >= most or now - at > REMEMBERED_S:
            self._had = lineage.history, (most := lineage.replicas), now
        return (self._connection.connects, lineage.history), lineage.replicas, most

    def _reached(self, wanted: int) -> int:
        try:
            call = node_info.wait(self._slot, wanted, timeout_ms=WAIT_MS)
            return self._connection.call(call, timeout=CALL_TIMEOUT_S)
        except ServerFault as exc:
            if isinstance(exc, AccessDenied) or "unknown command" in str(exc):
                return wanted  # it can't be asked here, as behind some proxies
            raise

    def _behind(self, reached: int, wanted: int) -> Unavailable:
        return Unavailable(
            f"what is appended is not known to be on all replicas of its master ({reached} of {wanted}), and tasks are "
            "done only then; see that the replicas are connected and keep up (`shardq stats`)"
        )


class Forwarder:
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
        self._claims = 0
        self._turn = 0
        self._open: set[Place] = set()
        """Ready lists that may hold tasks."""
        self._held: dict[str, tuple[_Batch, ShardqError]] = {}
        """List → the batch that it refused, or its replicas lack, and why."""
        self._lists: dict[str, _List] = {}
        self._again: dict[str | int | Place | tuple[str, str, float], float] = {}
        """List, shard or place that failed, or ("rate", topic, rate) that has no permits now → when to try again."""
        self._unasked: dict[str, list[int]] = {}
        """Topic → the shards in which it fails because the control slot could not be asked for permits."""
        self.loop: Loop = Loop(
            "shardq-forwarder",
            self._step,
            log,
            fails="the forwarder met an unexpected error, trying again",
            works="the forwarder works again",
            ended=self._ended,
        )

    def rouse(self, shard: int, topics: Sequence[str]) -> None:
        """Notes that these topics have ready tasks in the shard. The first call starts the thread."""
        with self._lock:
            self._told.update((shard, topic) for topic in topics)
        self.loop.start()
        self.loop.wake()

    def _step(self) -> float | None:
        with self._lock:
            self._open |= self._told
            self._told = set()
        if self._round():
            return 0.0
        # When a failed list or shard is tried again; if none has failed, pollers wake the thread.
        return max(0.0, min(self._again.values()) - time.monotonic()) if self._again else None

    def _ended(self) -> None:
        for batch, _ in self._held.values():
            self._give_back(batch)
        for each in self._lists.values():
            each.close()

    def _round(self) -> bool:
        """Serves every list once. Returns True if there is more to do at once."""
        now = time.monotonic()
        self._again = {what: at for what, at in self._again.items() if at > now}
        topology = self._cache.topology
        routes = topology.open_routes
        for to, (batch, _) in list(self._held.items()):
            if routes.get(batch.topic) != batch.route or not self._serves(batch.keys.shard):
                del self._held[to]
                self._again.pop(to, None)
                self._give_back(batch)
            elif to not in self._again:
                self._send(batch)
        for to in self._lists.keys() - {route.to for route in routes.values()}:
            self._lists.pop(to).close()
        self._open = {
            (shard, topic)
            for shard, topic in self._open
            if topic in routes
            and self._serves(shard)
            and needs_forwarder(self._driver, topology, topic, self._cache.keys(shard))
        }
        more = False
        for topic in sorted({topic for _, topic in self._open}):
            if self.loop.stopping.is_set():
                break
            more |= self._serve(topic, topology)
        return more

    def _serve(self, topic: str, topology: Topology) -> bool:
        """Forwards one batch of the topic from each shard that may have one. Returns True if there is more to do."""
        route, limit = topology.routes[topic], topology.limits.get(topic)
        shards = [
            shard
            for shard, other in sorted(self._open)
            if other == topic and shard not in self._again and (shard, topic) not in self._again
        ]
        if limit is not None and limit.rate is not None:
            if not shards or ("rate", topic, limit.rate) in self._again or self._is_held(topic, route, shards):
                return False
            return self._serve_limited(topic, route, limit.rate, shards)
        more = False
        for shard in shards:
            if self.loop.stopping.is_set() or self._is_held(topic, route, [shard]):
                continue
            _, left = self._forward(topic, route, shard, BATCH)
            more |= left > 0
        return more

    def _serve_limited(self, topic: str, route: Route, rate: float, shards: list[int]) -> bool:
        """Forwards as many tasks as there are permits for, from the shards in turns. Returns True if there is more to
        do at once.
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
        want = min(sum(ready.values()), consume.MAX_PERMITS)
        permits = rest = self._permits(topic, route, rate, want, shards)
        more = sum(ready.values()) > want
        # with few permits, a shard that came first in every round would leave the others none
        self._turn += 1
        first = self._turn % len(shards)
        for shard in [*shards[first:], *shards[:first]]:
            most = min(rest, ready.get(shard, 0))
            if most and not self.loop.stopping.is_set() and not self._is_held(topic, route, [shard]):
                taken, left = self._forward(topic, route, shard, most)
                rest -= taken
                more |= left > 0
        self._unused(topic, rest)
        return more and permits == want

    def _unused(self, topic: str, permits: int) -> None:
        """Gives back permits that were not used."""
        if permits:
            try:
                call = consume.release(self._cache.control, self._cache.topology.stamp, topic, (), unused=permits)
                self._driver.call(call, timeout=CALL_TIMEOUT_S)
            except ShardqError as exc:
                log.debug("%d permits of %r could not be given back: %s", permits, topic, exc)

    def _permits(self, topic: str, route: Route, rate: float, want: int, shards: list[int]) -> int:
        if not want:
            return 0
        call = consume.permit(
            self._cache.control,
            self._cache.topology.stamp,
            topic,
            Limit(rate=rate),
            want,
            lease_ms=int(LEASE_S * 1000),
            token=self._token(),
        )
        try:
            permit = self._driver.call(call, timeout=CALL_TIMEOUT_S)
            for shard in self._unasked.pop(topic, ()):
                self._faults.works(topic, route, shard)
            if permit.granted < want:
                self._again["rate", topic, rate] = time.monotonic() + max(PACE_S, permit.again_ms / 1000)
            return permit.granted
        except REFUSALS:
            # the limits may have changed: the next round goes by the new ones
            self._again["rate", topic, rate] = time.monotonic() + PACE_S
            with contextlib.suppress(ShardqError):
                run(self._driver, refresh(self._cache), CALL_TIMEOUT_S)
        except ShardqError as exc:
            self._again["rate", topic, rate] = time.monotonic() + RETRY_S
            self._unasked[topic] = shards
            for shard in shards:
                self._faults.failed(topic, route, shard, exc, said=self._is_said(exc))
        return 0

    def _is_held(self, topic: str, route: Route, shards: Sequence[int]) -> bool:
        """True while the list refuses a batch; then the topic fails in these shards, too."""
        if route.to not in self._held:
            return False
        _, why = self._held[route.to]
        for shard in shards:
            self._faults.failed(topic, route, shard, why, said=self._is_said(why))
        return True

    def _forward(self, topic: str, route: Route, shard: int, most: int) -> tuple[int, int]:
        """Forwards at most so many tasks of a shard. Returns how many it took, and how many are left."""
        keys = self._cache.keys(shard)
        try:
            if reaches(self._driver, route, keys):
                done = self._on(
                    keys,
                    lambda keys, epoch: dispatch.forward(
                        keys, epoch, topic, to=route.key, side=route.way, limit=most, maxlen=route.maxlen
                    ),
                )
                taken, left = done.sent, done.left
            else:
                batch, left = self._claim(keys, topic, route, min(most, BATCH))
                taken = len(batch.entries)
                if batch.entries:
                    self._send(batch)
        except ShardqError as exc:
            self._failed(topic, route, shard, exc)
            # they may have been forwarded, and then their permits are used
            return most if isinstance(exc, Unanswered) else 0, 0
        if route.to in self._held or shard in self._again:
            return taken, 0
        if left:
            self._faults.works(topic, route, shard)
        else:
            self._done(topic, route, shard)
        return taken, left

    def _done(self, topic: str, route: Route, shard: int) -> None:
        """Notes that the shard has nothing left of the topic."""
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
        batch, unreadable = _Batch(keys, topic, route, [], []), list[consume.SettleBury]()
        for position, (id, record) in enumerate(zip(claim.ids, claim.records, strict=True)):
            try:
                if position in claim.foreign:
                    raise UnreadableRecord(f"the id {shown_id(id)!r} is not text")
                batch.entries.append(Entry(id, *encoded_parts(record)))
                batch.acks.append(consume.SettleAck(id, token))
            except UnreadableRecord:
                unreadable.append(consume.SettleBury(id, token, UNREADABLE))
        if unreadable:
            self._tell(batch, lambda keys, epoch: consume.settle(keys, epoch, (), unreadable))
        return batch, claim.left[0]

    def _token(self) -> str:
        """A new name for a lease, or a new beginning for the names of permits."""
        self._claims += 1
        return f"{self._process}:forwarder:{self._claims}"

    def _send(self, batch: _Batch) -> None:
        """Pushes the batch to its list and acknowledges it, or holds it."""
        to = batch.route.to
        try:
            if to not in self._lists:
                self._lists[to] = _List(self._driver, batch.route)
            self._lists[to].append(batch)
        except ShardqError as exc:
            self._held[to] = batch, exc
            self._again[to] = time.monotonic() + RETRY_S
            # so that a round serves the place again, and finds it well, once the list takes the batch
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

    def _tell(self, batch: _Batch, make: Make[T]) -> None:
        """Settles or extends the batch in its shard. If that fails, the leases run out, and it is forwarded again."""
        try:
            self._on(batch.keys, make)
        except ShardqError as exc:
            self._open.add((batch.keys.shard, batch.topic))
            self._failed(batch.topic, batch.route, batch.keys.shard, exc)

    def _on(self, keys: ShardKeys, make: Make[T]) -> T:
        return run(self._driver, call_shard(self._cache, keys, make), CALL_TIMEOUT_S)

    def _failed(self, topic: str, route: Route, shard: int, exc: ShardqError) -> None:
        """Notes an error: if the node does not answer, it holds back all topics of the shard, else only this one."""
        of_the_node = isinstance(exc, (Unavailable, Unanswered))
        self._again[shard if of_the_node else (shard, topic)] = time.monotonic() + RETRY_S
        self._faults.failed(topic, route, shard, exc, said=self._is_said(exc))

    def _is_said(self, exc: ShardqError) -> bool:
        """True if the outage of the whole node was logged, or if the forwarder stops and nobody needs to know."""
        return self._driver.outages.covers(exc) or self.loop.stopping.is_set()
