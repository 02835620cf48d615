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
from shardq.calls.control import opened_by
from shardq.consumer.desk import Desk, List, Waiter
from shardq.drivers.sync import Driver
from shardq.errors import ShardqError
from shardq.layout.keys import ShardKeys
from shardq.layout.topology import Topology
from shardq.operation import Operation, on_shard, refreshed, run
from shardq.threads import ended

log = logging.getLogger("shardq.consumer")

PASS_ON_S = 0.005
"""How long a heard task may wait for a consumer of this process to come back, before another process is woken."""

AGAIN_S = 1.0
"""Until another is woken again, where that failed: in a large fleet it is long until somebody looks by himself."""

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
        self._late: list[tuple[float, List, bool]] = []
        """When to pass on, what, and whether even if somebody here has taken it since; a heap."""
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
        self.desk.close()
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
        self._pass_on(entry, PASS_ON_S, surely=False)

    def _pass_on(self, entry: List, after_s: float, *, surely: bool) -> None:
        with self._lock:
            heapq.heappush(self._late, (time.monotonic() + after_s, entry, surely))
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
        if shards := opened_by(message):
            for shard in shards:
                self.desk.missed(shard)
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
                due: list[tuple[List, bool]] = []
                while self._late and self._late[0][0] <= now:
                    _, entry, surely = heapq.heappop(self._late)
                    due.append((entry, surely))
            if news:
                self._try(refreshed(self._atlas))
            for entry, surely in due:
                if (surely or self.desk.unanswered(entry)) and not self._try(self._waking_another(entry)):
                    self._pass_on(entry, AGAIN_S, surely=True)

    def _try(self, chore: Operation[None]) -> bool:
        """False when the servers could not do it now."""
        try:
            run(self._driver, chore, CALL_TIMEOUT_S)
        except ShardqError as exc:
            log.debug("a chore of the waiting room failed: %s", exc)
            return False
        except Exception:
            # said once: another try would come to the same
            log.exception("a chore of the waiting room failed")
        return True

    def _waking_another(self, entry: List) -> Operation[None]:
        shard, topic = entry
        keys = self._atlas.keys(shard)
        return on_shard(self._atlas, lambda: keys, lambda keys, epoch: consume.wake(keys, epoch, topic))
