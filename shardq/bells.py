"""Hearing: one raw connection to each node, subscribed to the channels of the shards there. One ``Bells`` an engine.

A channel is *heard* while its subscription is confirmed. Whatever makes that doubtful (a lost connection, a
subscription the server ended because the slot moved, a silent server) means the same: the channel is unheard, the slot
map is learnt again, the channel is placed on the node that serves it now, and once it is confirmed its callback is
called, because a ring may have been missed. Callbacks are called from the ear's thread and must be quick.
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

    def __repr__(self) -> str:
        heard = sum(channel.heard for channel in self._channels.values())
        return f"<Bells: {heard} of {len(self._channels)} channels heard on {len(self._ears)} nodes>"

    def listen(self, name: str, slot: int, ring: Ring) -> None:
        """From now on ``ring`` is called at every message of the channel, and once (None) when it is first heard."""
        with self._lock:
            channel = self._channels.get(name)
            if channel is None:
                channel = self._channels[name] = Channel(name, slot, [ring])
                self._place(channel)
                return
            # a new list: another thread may be going through the old one
            channel.rings = [*channel.rings, ring]
            heard = channel.heard
        if heard:
            ring(None)

    def hears(self, name: str) -> bool:
        """Whether every ring of the channel reaches us now."""
        channel = self._channels.get(name)
        return channel is not None and channel.heard

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

    def close(self) -> None:
        with self._lock:
            self._closed = True
            ears = list(self._ears.values())
            self._channels.clear()
        for ear in ears:
            ear.stop()
        ended(ear.thread for ear in ears)

    def _place(self, channel: Channel) -> None:
        """Gives the channel to the listener of its node. The lock is held."""
        node = self._driver.node_of(channel.slot)
        channel.node, channel.heard = node, False
        if node not in self._ears:
            listener = self._ears[node] = _Listener(self, self._driver, node)
            listener.start()
        self._ears[node].do(("SSUBSCRIBE", channel.name))

    # ---- for the listeners

    def confirmed(self, name: str, node: str) -> None:
        with self._lock:
            channel = self._channels.get(name)
            if channel is None or channel.node != node:
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
        try:
            self._driver.refresh()
        except ShardqError as exc:
            log.debug("no fresh slot map: %s", exc)
        with self._lock:
            if self._closed:
                return
            for channel in mine:
                if self._channels.get(channel.name) is channel:
                    self._place(channel)
        for channel in mine:
            channel.ring(None)

    def idle(self, listener: _Listener) -> bool:
        """Whether a listener whose connection ended has nothing left to listen to; then it is dropped."""
        with self._lock:
            if any(channel.node == listener.node for channel in self._channels.values()):
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
        self._stopping = threading.Event()
        self._backoff_s = FIRST_BACKOFF_S
        self._said = False
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
        self._stopping.set()
        with self._lock:
            ear = self._ear
        if ear is not None:
            ear.wake()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._attend()
            except ShardqError as exc:
                self._log(exc)
            except Exception:
                log.exception("the subscriber of %s met an error it does not know; connecting anew", self.node)
            if self._stopping.wait(self._backoff_s):
                return
            self._backoff_s = min(LONGEST_BACKOFF_S, self._backoff_s * 2)
            with self._lock:
                self._orders.clear()
            self._bells.lost(self.node)
            if self._bells.idle(self):
                return

    def _log(self, exc: ShardqError) -> None:
        # once an outage; pollers fall back to short sleeps meanwhile
        if not self._said and not self._stopping.is_set():
            log.warning("not hearing %s for the moment: %s", self.node, exc)
        self._said = True

    def _attend(self) -> None:
        """One connection, from its start to its end. Returns only to stop, else raises."""
        ear = self._driver.ear(self.node)
        with self._lock:
            self._ear = ear
        try:
            pinged = time.monotonic()
            answered = True
            while not self._stopping.is_set():
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
            if self._said:
                log.warning("hearing %s again", self.node)
            self._said, self._backoff_s = False, FIRST_BACKOFF_S
            self._bells.confirmed(_text(message[1]), self.node)
        elif kind == b"sunsubscribe" and message[1] is not None:
            # asked for by forget(), which knows the channel no more; or the slot has moved
            self._bells.lost(self.node, _text(message[1]))


def _text(word: object) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)
