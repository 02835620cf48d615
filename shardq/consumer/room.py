"""The waiting room of one engine: its wake channels, and passing on what nobody here has time for."""

from __future__ import annotations

import heapq
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection

from shardq.atlas import Atlas
from shardq.bells import Bells
from shardq.calls import consume
from shardq.consumer.desk import Desk, List, Waiter
from shardq.drivers.sync import Driver
from shardq.errors import ShardqError
from shardq.layout.keys import ShardKeys
from shardq.layout.topology import Topology
from shardq.operation import on_shard, refreshed, run
from shardq.threads import ended

log = logging.getLogger("shardq.consumer")

PASS_ON_S = 0.005
"""How long a heard task may wait for a consumer of this process to come back, before another process is woken."""

CALL_TIMEOUT_S = 2.0


class Room:
    """Opened by the first consumer that waits. Its one thread passes wake-ups on and reads news."""

    def __init__(self, driver: Driver, atlas: Atlas, bells: Bells) -> None:
        self.process = f"{socket.gethostname()[:32]}-{secrets.token_hex(6)}"
        self.desk = Desk()
        self._driver = driver
        self._atlas = atlas
        self._bells = bells
        self._rings: dict[int, Callable[[str | None], None]] = {}
        self._lock = threading.Lock()
        self._chores = threading.Condition(self._lock)
        self._late: list[tuple[float, List]] = []
        """When to pass on, and what; a heap."""
        self._news = False
        self._closed = False
        self._unlearn = atlas.on_change(self._topology_changed)
        self._thread = threading.Thread(target=self._run, name="shardq-waiting", daemon=True)
        self._thread.start()
        bells.listen(atlas.control.news, atlas.control.slot, self._hear_news)
        self._listen(atlas.topology)

    def __repr__(self) -> str:
        return f"<Room {self.process}>"

    def hears(self, keys: ShardKeys) -> bool:
        """Whether a wake-up of this shard would reach us: only then our name may be left there."""
        return self._bells.hears(keys.wake(self.process))

    def close(self) -> None:
        """Names that are left behind are dropped by the first task that draws them: nobody hears."""
        self._unlearn()
        with self._lock:
            self._closed = True
            self._chores.notify()
        ended([self._thread])
        self._bells.forget(self._atlas.control.news, self._hear_news)
        for shard, ring in self._rings.items():
            self._bells.forget(self._atlas.keys(shard).wake(self.process), ring)

    def left(self, waiter: Waiter, more: Collection[List]) -> None:
        """A waiter goes, perhaps with tasks: what it was woken for and did not take, and what else it leaves behind."""
        for entry in self.desk.leave(waiter, more):
            self.pass_on(entry)
        self.desk.rouse(more)

    def pass_on(self, entry: List) -> None:
        """Nobody here takes this list's task: if that is still so in a moment, another process is woken."""
        with self._lock:
            heapq.heappush(self._late, (time.monotonic() + PASS_ON_S, entry))
            self._chores.notify()

    def _listen(self, topology: Topology) -> None:
        """To every shard that may hold tasks. The lock guards against two topologies learnt at once."""
        for shard in topology.span():
            keys = self._atlas.keys(shard)
            with self._lock:
                if shard in self._rings:
                    continue
                ring = self._rings[shard] = self._ring_of(shard)
            self._bells.listen(keys.wake(self.process), keys.slot, ring)

    def _ring_of(self, shard: int) -> Callable[[str | None], None]:
        def ring(topic: str | None) -> None:
            if topic is None:
                self.desk.missed(shard)
            elif not self.desk.heard((shard, topic)):
                self.pass_on((shard, topic))

        return ring

    def _topology_changed(self, topology: Topology) -> None:
        self._listen(topology)
        # what came while a topic was paused drew no names
        self.desk.forget_all()
        self.desk.rouse_all()

    def _hear_news(self, message: str | None) -> None:
        if message == "members":
            return
        with self._lock:
            self._news = True
            self._chores.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._closed and not self._news and (not self._late or self._late[0][0] > time.monotonic()):
                    self._chores.wait(max(0.0, self._late[0][0] - time.monotonic()) if self._late else None)
                if self._closed:
                    return
                news, self._news = self._news, False
                now = time.monotonic()
                due: list[List] = []
                while self._late and self._late[0][0] <= now:
                    due.append(heapq.heappop(self._late)[1])
            try:
                self._do(news, due)
            except ShardqError as exc:
                # the safety looks of whoever waits make up for it
                log.debug("a chore of the waiting room failed: %s", exc)
            except Exception:
                log.exception("a chore of the waiting room failed")

    def _do(self, news: bool, due: list[List]) -> None:
        if news:
            run(self._driver, refreshed(self._atlas), CALL_TIMEOUT_S)
        for shard, topic in due:
            if self.desk.unanswered((shard, topic)):
                self._wake_another(self._atlas.keys(shard), topic)

    def _wake_another(self, keys: ShardKeys, topic: str) -> None:
        run(
            self._driver,
            on_shard(self._atlas, lambda: keys, lambda keys, epoch: consume.wake(keys, epoch, topic)),
            CALL_TIMEOUT_S,
        )
