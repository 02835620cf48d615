"""Hearing: one raw connection to each node, subscribed to the channels of the shards there. One ``Bells`` an engine.

A channel is *heard* while its subscription is confirmed by the node that serves its slot. Whatever makes that doubtful
(a lost connection, a subscription the server ended because the slot moved, a silent server) means the same: the channel
is unheard, the slot map is learnt again, the channel is placed on the node that serves it now, and once it is confirmed
its callback is called, because a ring may have been missed. Callbacks are called from a thread of this module and must
be quick.

A master that others have replaced may go on answering us, when it is cut off from them alone, or hang. So where nodes
can be replaced one more thread, the *keeper*, moves the channels whenever a new slot map was learnt, by whomever, and
learns one itself now and then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from shardq.drivers.ear import Ear
from shardq.drivers.sync import Driver
from shardq.errors import ShardqError, Unavailable
from shardq.threads import ended

log = logging.getLogger("shardq.bells")

PING_S = 5.0
"""A connection that a firewall has dropped says nothing: ask this often, and expect an answer before the next."""

LOOK_S = 3.0
"""How often the keeper learns the slot map: as soon as a dispatcher that died is noticed, too."""

DEAF_S = 5.0
"""Deaf for this long is worth a line in the log: a connection that was lost is mostly back at once."""

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
"""Between two connections: short after a lost one, long where a node stays away or refuses the subscription."""


Ring = Callable[[str | None], object]
"""Called with each message, and with None when messages may have been missed."""


@dataclass(slots=True, eq=False)
class Channel:
    """One wanted channel."""

    name: str
    slot: int
    rings: list[Ring]
    node: str | None = None
    """Where it is, or is being, subscribed."""
    heard: bool = False

    def ring(self, message: str | None) -> None:
        for ring in self.rings:
            ring(message)


class Bells:
    """The channels this process listens to. Thread-safe."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}
        self._ears: dict[str, _Listener] = {}
        self._closed = False
        self._new_map = threading.Event()
        self._unfollow = driver.on_new_map(self._new_map.set)
        self._keeper: threading.Thread | None = None

    def __repr__(self) -> str:
        heard = sum(channel.heard for channel in self._channels.values())
        return f"<Bells: {heard} of {len(self._channels)} channels heard on {len(self._ears)} nodes>"

    def listen(self, name: str, slot: int, ring: Ring) -> None:
        """From now on ``ring`` is called at every message of the channel, and once (None) when it is first heard.

        Closed, it hears nothing.
        """
        with self._lock:
            if self._closed:
                return
            channel = self._channels.get(name)
            if channel is None:
                channel = self._channels[name] = Channel(name, slot, [ring])
                self._place(channel)
                self._keep()
                return
            # a new list: another thread may be going through the old one
            channel.rings = [*channel.rings, ring]
            heard = channel.heard
        if heard:
            ring(None)

    def hears(self, name: str) -> bool:
        """Whether every ring of the channel reaches us now."""
        channel = self._channels.get(name)
        return channel is not None and channel.heard and channel.node == self._driver.node_of(channel.slot)

    def forget(self, name: str, ring: Ring) -> None:
        """Calls ``ring`` no more; the last one to forget a channel ends its subscription."""
        with self._lock:
            channel = self._channels.get(name)
            if channel is None:
                return
            channel.rings = [other for other in channel.rings if other != ring]
            if not channel.rings:
                del self._channels[name]
                if channel.node in self._ears:
                    self._ears[channel.node].do(("SUNSUBSCRIBE", name))

    def refusals(self) -> dict[str, str]:
        """Nodes that let this process subscribe to nothing, and why; without those that can't be reached."""
        with self._lock:
            return {node: ear.refused for node, ear in self._ears.items() if ear.refused}

    def close(self) -> None:
        self._unfollow()
        with self._lock:
            self._closed = True
            ears = list(self._ears.values())
            self._channels.clear()
            keeper = self._keeper
        self._new_map.set()
        for ear in ears:
            ear.stop()
        ended([*(ear.thread for ear in ears), *([keeper] if keeper else [])])

    # ---- where the channels are

    def _place(self, channel: Channel) -> None:
        """Gives the channel to the listener of its node, or of no node while none serves it. The lock is held."""
        node = self._driver.node_of(channel.slot)
        channel.node, channel.heard = node, False
        if node not in self._ears:
            listener = self._ears[node] = _Listener(self, self._driver, node)
            listener.start()
        self._ears[node].do(("SSUBSCRIBE", channel.name))

    def _keep(self) -> None:
        """Starts the keeper, where another node may come to serve a slot. The lock is held."""
        if self._keeper is None and not self._closed and self._driver.settings.kind != "single":
            self._keeper = threading.Thread(target=self._run_keeper, name="shardq-ear-keeper", daemon=True)
            self._keeper.start()

    def _run_keeper(self) -> None:
        while not self._closed:
            if not self._new_map.wait(LOOK_S):
                self._learn("")
            self._new_map.clear()
            self._follow()

    def _follow(self) -> None:
        """Moves the channels whose slots are served elsewhere by the present map."""
        with self._lock:
            if self._closed:
                return
            moved = [c for c in self._channels.values() if self._driver.node_of(c.slot) not in ("", c.node)]
            for channel in moved:
                if channel.node in self._ears:
                    self._ears[channel.node].do(("SUNSUBSCRIBE", channel.name))
                self._place(channel)
            left = {ear for node, ear in self._ears.items() if not self._listens_to(node)}
        for ear in left:
            ear.leave()
        for channel in moved:
            channel.ring(None)

    def _listens_to(self, node: str) -> bool:
        return any(channel.node == node for channel in self._channels.values())

    def _learn(self, doubted: str) -> None:
        try:
            self._driver.refresh(doubted)
        except ShardqError as exc:
            log.debug("no fresh slot map: %s", exc)

    # ---- for the listeners

    def confirmed(self, name: str, node: str) -> None:
        with self._lock:
            channel = self._channels.get(name)
            if channel is None or channel.node != node or channel.heard:
                return
            channel.heard = True
        channel.ring(None)

    def rung(self, name: str, message: str) -> None:
        channel = self._channels.get(name)
        if channel is not None:
            channel.ring(message)

    def lost(self, node: str, name: str | None = None) -> None:
        """This channel of a node (or all) is unheard; places them anew by a fresh slot map."""
        with self._lock:
            mine = [c for c in self._channels.values() if c.node == node and name in (None, c.name)]
            for channel in mine:
                channel.heard = False
        if not mine:
            return  # forgotten meanwhile
        self._learn(doubted=node)
        with self._lock:
            if self._closed:
                return
            for channel in mine:
                # unless the keeper has moved it meanwhile
                if self._channels.get(channel.name) is channel and channel.node == node and not channel.heard:
                    self._place(channel)
        for channel in mine:
            channel.ring(None)

    def idle(self, listener: _Listener) -> bool:
        """True if a listener has nothing left to listen to; then it is dropped, and must end."""
        with self._lock:
            if self._listens_to(listener.node):
                return False
            if self._ears.get(listener.node) is listener:
                del self._ears[listener.node]
            return True


class _Listener:
    """One node's connection and thread."""

    def __init__(self, bells: Bells, driver: Driver, node: str) -> None:
        self.node = node
        self._bells = bells
        self._driver = driver
        self._lock = threading.Lock()
        self._orders: list[tuple[str, str]] = []
        self._ear: Ear | None = None
        self._stopping = False
        self._nudged = threading.Event()
        """It is to stop, or to see whether it is still needed."""
        self._backoff_s = FIRST_BACKOFF_S
        self._deaf_since: float | None = None
        self._said = False
        """The log says that it does not hear."""
        self.refused = ""
        """Why the node does not let it subscribe."""
        self.thread = threading.Thread(target=self._run, name=f"shardq-ear-{node}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def do(self, order: tuple[str, str]) -> None:
        """A command for the connection's own thread to send: a TLS socket is not for two threads at once."""
        with self._lock:
            self._orders.append(order)
            ear = self._ear
        if ear is not None:
            ear.wake()

    def stop(self) -> None:
        self._stopping = True
        self.leave()

    def leave(self) -> None:
        """Ends, unless it has got something to listen to again."""
        self._nudged.set()
        with self._lock:
            ear = self._ear
        if ear is not None:
            ear.wake()

    def _run(self) -> None:
        while True:
            try:
                self._attend()
                return
            except ShardqError as exc:
                self._note(exc)
            except Exception:
                log.exception("the subscriber of %s met an error it does not know; connecting anew", self.node)
            self._nudged.wait(self._backoff_s)
            self._nudged.clear()
            if self._stopping:
                return
            self._backoff_s = min(LONGEST_BACKOFF_S, self._backoff_s * 2)
            with self._lock:
                self._orders.clear()
            self._bells.lost(self.node)
            if self._bells.idle(self):
                return

    def _note(self, exc: ShardqError) -> None:
        """Said once, and where others have not said that the node fails; pollers look often meanwhile."""
        now = time.monotonic()
        self.refused = "" if isinstance(exc, Unavailable) else str(exc)
        if self._deaf_since is None:
            self._deaf_since = now
        passing = isinstance(exc, Unavailable) and now - self._deaf_since < DEAF_S
        if self._said or passing or self._stopping or self._driver.outages.covers(self.node, exc):
            return
        log.warning("not hearing %s for the moment: %s", self.node or "the cluster", exc)
        self._said = True

    def _attend(self) -> None:
        """One connection, from its start to its end. Returns when it is needed no more, else raises."""
        if not self.node:
            raise Unavailable("no node of the cluster serves the slot of a channel")
        ear = self._driver.ear(self.node)
        with self._lock:
            self._ear = ear
        try:
            pinged = time.monotonic()
            answered = True
            while not self._stopping:
                if self._nudged.is_set():
                    self._nudged.clear()
                    if self._bells.idle(self):
                        return
                with self._lock:
                    orders, self._orders = self._orders, []
                for order in orders:
                    ear.send(*order)
                message = ear.read(max(0.0, pinged + PING_S - time.monotonic()))
                if message is not None:
                    answered = True
                    self._hear(message)
                elif time.monotonic() - pinged >= PING_S:
                    if not answered:
                        raise Unavailable(f"{self.node} has not answered a PING for {PING_S:g} s")
                    ear.send("PING")
                    pinged, answered = time.monotonic(), False
        finally:
            with self._lock:
                self._ear = None
            ear.close()

    def _hear(self, message: list[object]) -> None:
        kind = message[0]
        if kind == b"smessage":
            self._bells.rung(_text(message[1]), _text(message[2]))
        elif kind == b"ssubscribe":
            if self._said and self._deaf_since is not None:
                log.warning("hearing %s again after %.1f s", self.node, time.monotonic() - self._deaf_since)
            self._said, self._deaf_since, self._backoff_s, self.refused = False, None, FIRST_BACKOFF_S, ""
            self._bells.confirmed(_text(message[1]), self.node)
        elif kind == b"sunsubscribe" and message[1] is not None:
            # asked for by forget(), which knows the channel no more; or the slot has moved
            self._bells.lost(self.node, _text(message[1]))


def _text(word: object) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)
