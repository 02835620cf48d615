"""Forwarding to a list in another slot of a cluster: claim here, push there, acknowledge here.

No script can reach both, so a crash between the push and the acknowledgement repeats the payload when the lease runs
out: at least once. One thread for the process, woken by the pollers, in rounds: at most one batch of each topic in each
shard. A batch that its list does not take is *held*: tried again now and then, its leases extended, so that an outage
there uses up nobody's attempts; meanwhile nothing more is claimed for that list, and the others go on. When the route
changes, and when the relay stops, what is held goes back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from shardq.atlas import Atlas
from shardq.calls import consume
from shardq.calls.request import Call, Command
from shardq.drivers.sync import Driver
from shardq.errors import ServerFault, ShardqError
from shardq.layout.keys import ShardKeys
from shardq.layout.slots import slot_of
from shardq.layout.topology import Route
from shardq.model.record import encoded_payload
from shardq.operation import on_shard, run

log = logging.getLogger("shardq.relay")

T = TypeVar("T")

BATCH = 256
"""Payloads of one trip: some 30 kB of ordinary ones, in well under a millisecond of the destination."""

LEASE_S = 30.0
RETRY_S = 1.0
CALL_TIMEOUT_S = 2.0
"""What one list's node that says nothing can cost the others in a round; well below the lease, so that it can be
extended between two tries."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some payloads of one topic in one shard, under lease."""

    keys: ShardKeys
    topic: str
    route: Route
    acks: list[consume.Ack]
    payloads: list[bytes]


class Relay:
    """Serves the routes of the present topology that the forward script can't, for the shards it is told of."""

    def __init__(self, driver: Driver, atlas: Atlas, *, process: str) -> None:
        self._driver = driver
        self._atlas = atlas
        self._process = process
        self._lock = threading.Lock()
        self._told: set[int] = set()
        """Shards that pollers named since the last round."""
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._claims = 0
        self._open: set[int] = set()
        """Shards that may have something."""
        self._held: dict[str, _Batch] = {}
        """List → the batch it does not take."""
        self._again: dict[str | int, float] = {}
        """List or shard that failed → when to try it again."""
        self._said: set[str | int] = set()
        """Lists and shards of which the log says that they fail."""
        self.thread: threading.Thread | None = None

    def rouse(self, shard: int) -> None:
        """Something may be ready there. The first call starts the thread."""
        with self._lock:
            self._told.add(shard)
            if self.thread is None and not self._stopping.is_set():
                self.thread = threading.Thread(target=self._run, name="shardq-relay", daemon=True)
                self.thread.start()
        self._news.set()

    def stop(self) -> None:
        """Tells the thread to end."""
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
                more = self._round()
            except Exception:
                log.exception("the relay met an error it does not know, trying on")
                more, wait = False, RETRY_S
                continue
            wait = 0.0 if more else self._patience()
        for batch in self._held.values():
            self._give_back(batch)

    def _patience(self) -> float | None:
        """Until something that failed is to be tried again; None: nothing is, so until a poller says something."""
        return max(0.0, min(self._again.values()) - time.monotonic()) if self._again else None

    def _round(self) -> bool:
        """Once over everything; says whether there is more to do at once."""
        for to, batch in list(self._held.items()):
            if self._atlas.topology.open_routes.get(batch.topic) != batch.route:
                del self._held[to]
                self._again.pop(to, None)
                self._said.discard(to)
                self._give_back(batch)
            elif self._due(to):
                self._send(batch)
        more = False
        for shard in sorted(self._open):
            if self._stopping.is_set():
                break
            if self._due(shard):
                more |= self._serve(self._atlas.keys(shard))
        return more

    def _due(self, what: str | int) -> bool:
        return self._again.get(what, 0.0) <= time.monotonic()

    def _serve(self, keys: ShardKeys) -> bool:
        """One batch of each routed topic of a shard, which stays open while it may have more."""
        more = waits = False
        for topic, route in self._atlas.topology.open_routes.items():
            if slot_of(route.to) == keys.slot:
                continue
            if route.to in self._held:
                waits = True
                continue
            try:
                batch, left = self._claim(keys, topic, route)
            except ShardqError as exc:
                self._failed(keys.shard, f"can't relay from shard {keys.shard}, trying on", exc)
                return more
            if batch.payloads:
                self._send(batch)
            waits |= route.to in self._held
            more |= bool(left) and route.to not in self._held
        if self._due(keys.shard):
            self._well(keys.shard, f"relaying from shard {keys.shard} again")
        if not more and not waits and keys.shard not in self._again:
            self._open.discard(keys.shard)
        return more

    def _claim(self, keys: ShardKeys, topic: str, route: Route) -> tuple[_Batch, int]:
        self._claims += 1
        token = f"{self._process}:relay:{self._claims}"
        claim = self._on(
            keys,
            lambda keys, epoch: consume.claim(
                keys, epoch, {topic: BATCH}, max=BATCH, lease_ms=int(LEASE_S * 1000), token=token
            ),
        )
        acks = [consume.Ack(task.id, token) for task in claim.tasks]
        return _Batch(keys, topic, route, acks, [encoded_payload(task.record) for task in claim.tasks]), claim.left[0]

    def _send(self, batch: _Batch) -> None:
        """To its list and done; or held."""
        to = batch.route.to
        verb = "LPUSH" if batch.route.side == "left" else "RPUSH"
        command: Command[int] = Command(slot=slot_of(to), words=(verb, to, *batch.payloads), decode=int)
        try:
            self._driver.call(command, timeout=CALL_TIMEOUT_S)
        except ShardqError as exc:
            self._held[to] = batch
            self._failed(to, f"the list {to!r} does not take what is forwarded to it, trying on", exc)
            self._tell(batch, lambda keys, epoch: consume.extend(keys, epoch, batch.acks, lease_ms=int(LEASE_S * 1000)))
            return
        self._held.pop(to, None)
        self._well(to, f"the list {to!r} takes what is forwarded to it again")
        self._tell(batch, lambda keys, epoch: consume.settle(keys, epoch, batch.acks))

    def _give_back(self, batch: _Batch) -> None:
        backs = [consume.Back(ack.id, ack.token) for ack in batch.acks]
        self._tell(batch, lambda keys, epoch: consume.settle(keys, epoch, (), backs))

    def _tell(self, batch: _Batch, make: Callable[[ShardKeys, int], Call[T]]) -> None:
        """Tells the shard what became of its batch. If it can't be told the leases run out: at least once."""
        try:
            self._on(batch.keys, make)
        except ShardqError as exc:
            self._open.add(batch.keys.shard)
            self._failed(batch.keys.shard, f"can't relay from shard {batch.keys.shard}, trying on", exc)

    def _on(self, keys: ShardKeys, make: Callable[[ShardKeys, int], Call[T]]) -> T:
        return run(self._driver, on_shard(self._atlas, lambda: keys, make), CALL_TIMEOUT_S)

    def _failed(self, what: str | int, said: str, exc: ShardqError) -> None:
        """Said once, and not where the log says of the whole node that it fails."""
        covered = isinstance(exc, ServerFault) and self._driver.outages.covers(exc.node)
        if what not in self._said and not covered and not self._stopping.is_set():
            log.error("%s: %s", said, exc)
            self._said.add(what)
        self._again[what] = time.monotonic() + RETRY_S

    def _well(self, what: str | int, said: str) -> None:
        self._again.pop(what, None)
        if what in self._said:
            log.warning("%s", said)
            self._said.discard(what)
