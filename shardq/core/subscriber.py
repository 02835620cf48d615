"""Sharded pub/sub: one subscriber connection to each node, for the wake-up channels of the shards there. An engine has
one ``Subscriber``.

A channel is *subscribed* while the node that serves its slot confirms the subscription. A lost connection, a
subscription that the server ended because the slot moved, and a silent server all end that. The subscriber then
refreshes the slot map, subscribes on the node that serves the slot now, and calls the channel's callbacks with None,
because messages may have been missed. Callbacks run in a thread of this module and must be quick.

A master that was replaced may go on answering this process, when it is cut off from the other nodes alone, or it may
hang. Where nodes can be replaced, the *slot watcher* thread therefore moves the channels when a caller has refreshed
the slot map, and refreshes it itself every few seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shardq.core.drivers.credentials import LOOK_S
from shardq.core.drivers.owned import PubSubConnection
from shardq.core.drivers.routing import LOOK_EVERY_S
from shardq.core.drivers.sync import Driver
from shardq.core.layout.words import text_of
from shardq.core.locks import Guard, SignalSafeEvent
from shardq.core.threads import Loop, ended, launch
from shardq.errors import ShardqError, Unavailable

log: logging.Logger = logging.getLogger("shardq.subscriber")

PING_S = 5.0
"""The time between two PINGs, and the time for an answer: a connection that a firewall has dropped says nothing."""

UNSUBSCRIBED_S = 5.0  # an outage is logged after this time: most lost connections are back at once

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
"""The pause before the next connection: short after a lost one, long while a node stays away or refuses."""


OnMessage = Callable[[str | None], object]  # called with each message, and with None when messages may have been missed


@dataclass(slots=True, eq=False)
class Channel:
    """A channel that is listened to."""

    name: str
    slot: int
    callbacks: list[OnMessage]
    node: str | None = None  # the node on which the channel is subscribed, or is being subscribed
    subscribed: bool = False

    def on_message(self, message: str | None) -> None:
        for on_message in self.callbacks:
            on_message(message)


class Subscriber:
    """The channels that this process is subscribed to. Thread-safe."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = Guard()
        """Held while channels change. A signal's handler that meets itself in it may go on: it only adds."""
        self._channels: dict[str, Channel] = {}
        self._listeners: dict[str, _Listener] = {}
        self._closed = False
        self._slot_watcher = Loop(
            "shardq-slot-watcher",
            self._watch_slots,
            log,
            fails="channels can't follow the slot map, trying again",
            works="channels follow the slot map again",
            first_s=LOOK_EVERY_S,
        )
        self._stop_following = driver.on_new_map(self._slot_watcher.wake)

    def __repr__(self) -> str:
        subscribed = sum(channel.subscribed for channel in self._channels.values())
        return (
            f"<Subscriber: {subscribed} of {len(self._channels)} channels subscribed on {len(self._listeners)} nodes>"
        )

    def subscribe(self, name: str, slot: int, on_message: OnMessage) -> None:
        """Calls ``on_message`` with every message of the channel from now on, and once with None when the subscription
        is confirmed.

        A closed subscriber does nothing.
        """
        with self._lock:
            if self._closed:
                return
            channel = self._channels.get(name)
            if channel is None:
                channel = self._channels[name] = Channel(name, slot, [on_message])
                self._assign(channel)
                self._start_slot_watcher()
                return
            # A new list: another thread may be iterating over the old one.
            channel.callbacks = [*channel.callbacks, on_message]
            subscribed = channel.subscribed
        if subscribed:
            on_message(None)

    def is_subscribed(self, name: str) -> bool:
        """True if every message of the channel reaches this process now."""
        channel = self._channels.get(name)
        return channel is not None and channel.subscribed and channel.node == self._driver.node_of(channel.slot)

    def unsubscribe(self, name: str, on_message: OnMessage) -> None:
        """Calls ``on_message`` no more. A channel without callbacks is unsubscribed."""
        with self._lock:
            channel = self._channels.get(name)
            if channel is None:
                return
            channel.callbacks = [other for other in channel.callbacks if other != on_message]
            if not channel.callbacks:
                del self._channels[name]
                if channel.node in self._listeners:
                    self._listeners[channel.node].send(("SUNSUBSCRIBE", name))

    def refusals(self) -> dict[str, str]:
        """Node that refuses subscriptions → its reason. Unreachable nodes are not among them."""
        with self._lock:
            return {node: listener.refused for node, listener in self._listeners.items() if listener.refused}

    def close(self) -> None:
        self._stop_following()
        with self._lock:
            self._closed = True
            listeners = list(self._listeners.values())
            self._channels.clear()
        self._slot_watcher.stop()
        for listener in listeners:
            listener.stop()
        ended([*(listener.thread for listener in listeners), self._slot_watcher])

    # ---- where the channels are

    def _assign(self, channel: Channel) -> None:
        """Gives the channel to the listener of its node, or of no node while none serves it. The caller holds the
        lock.
        """
        node = self._driver.node_of(channel.slot)
        channel.node, channel.subscribed = node, False
        listener = self._listeners.get(node) or self._listeners.setdefault(node, _Listener(self, self._driver, node))
        if listener.thread.ident is None:  # new, or whoever made it was interrupted
            launch(listener.thread)
        listener.send(("SSUBSCRIBE", channel.name))

    def _start_slot_watcher(self) -> None:
        """Starts the slot watcher where another node may come to serve a slot. The caller holds the lock."""
        if not self._closed and self._driver.settings.kind != "single":
            self._slot_watcher.start()

    def _watch_slots(self) -> float:
        wait_s = self._driver.look()
        self._move_channels()
        return wait_s

    def _move_channels(self) -> None:
        """Moves the channels whose slots are served by other nodes under the present slot map."""
        with self._lock:
            if self._closed:
                return
            moved = [c for c in self._channels.values() if self._driver.node_of(c.slot) not in ("", c.node)]
            for channel in moved:
                if channel.node in self._listeners:
                    self._listeners[channel.node].send(("SUNSUBSCRIBE", channel.name))
                self._assign(channel)
            left = {listener for node, listener in self._listeners.items() if not self._needs(node)}
        for listener in left:
            listener.stop_if_idle()
        for channel in moved:
            channel.on_message(None)

    def _needs(self, node: str) -> bool:
        return any(channel.node == node for channel in self._channels.values())

    def _refresh_slot_map(self, doubted: str) -> None:
        try:
            self._driver.refresh(doubted)
        except ShardqError as exc:
            log.debug("no fresh slot map: %s", exc)

    # ---- for the listeners

    def confirmed(self, name: str, node: str) -> None:
        with self._lock:
            channel = self._channels.get(name)
            if channel is None or channel.node != node or channel.subscribed:
                return
            channel.subscribed = True
        channel.on_message(None)

    def received(self, name: str, message: str) -> None:
        channel = self._channels.get(name)
        if channel is not None:
            channel.on_message(message)

    def subscription_lost(self, node: str, name: str | None = None) -> None:
        """Marks a channel of a node, or all of them, as not subscribed, and assigns them anew under a fresh slot
        map.
        """
        with self._lock:
            mine = [c for c in self._channels.values() if c.node == node and name in (None, c.name)]
            for channel in mine:
                channel.subscribed = False
        if not mine:
            return  # unsubscribed meanwhile
        self._refresh_slot_map(doubted=node)
        with self._lock:
            if self._closed:
                return
            for channel in mine:
                # The slot watcher may have moved it meanwhile.
                if self._channels.get(channel.name) is channel and channel.node == node and not channel.subscribed:
                    self._assign(channel)
        for channel in mine:
            channel.on_message(None)

    def remove_if_idle(self, listener: _Listener) -> bool:
        """True if the listener has no channel left. It is removed then, and must end."""
        with self._lock:
            if self._needs(listener.node):
                return False
            if self._listeners.get(listener.node) is listener:
                del self._listeners[listener.node]
            return True


class _Listener:
    """The connection to one node, and its thread."""

    def __init__(self, subscriber: Subscriber, driver: Driver, node: str) -> None:
        self.node = node
        self._subscriber = subscriber
        self._driver = driver
        self._commands: deque[tuple[str, str]] = deque()
        self._connection: PubSubConnection | None = None
        self._stopping = False
        self._woken = SignalSafeEvent()  # set when the listener is to stop, or to check if it still has channels
        self._backoff_s = FIRST_BACKOFF_S
        self._unsubscribed_since: float | None = None
        self._logged = False  # true while the log says that this node's subscription is lost
        self.refused: str = ""  # the node's reason for refusing subscriptions, if it does
        self.thread: threading.Thread = threading.Thread(
            target=self._run, name=f"shardq-subscriber-{node}", daemon=True
        )

    def send(self, command: tuple[str, str]) -> None:
        """Queues a command for the connection's own thread: two threads must not use one TLS socket at once."""
        self._commands.append(command)
        connection = self._connection  # after that: one that is made now finds the command
        if connection is not None:
            connection.wake()

    def stop(self) -> None:
        self._stopping = True
        self.stop_if_idle()

    def stop_if_idle(self) -> None:
        """Ends the listener, unless it has channels again by then."""
        self._woken.set()
        connection = self._connection
        if connection is not None:
            connection.wake()

    def _run(self) -> None:
        while True:
            try:
                self._serve_connection()
                return
            except ShardqError as exc:
                self._log_failure(exc)
            except Exception:
                log.exception("the subscriber of %s met an error it does not know; connecting anew", self.node)
            self._woken.wait(self._backoff_s)
            self._woken.clear()
            if self._stopping:
                return
            self._backoff_s = min(LONGEST_BACKOFF_S, self._backoff_s * 2)
            self._commands.clear()
            self._subscriber.subscription_lost(self.node)
            if self._subscriber.remove_if_idle(self):
                return

    def _log_failure(self, exc: ShardqError) -> None:
        """Logs an outage once, and not where the log says already that the node fails. Pollers poll more often
        meanwhile.
        """
        now = time.monotonic()
        self.refused = "" if isinstance(exc, Unavailable) else str(exc)
        if self._unsubscribed_since is None:
            self._unsubscribed_since = now
        passing = isinstance(exc, Unavailable) and now - self._unsubscribed_since < UNSUBSCRIBED_S
        if self._logged or passing or self._stopping or self._driver.outages.covers(exc, self.node):
            return
        node, fields = self.node or "the cluster", {"node": self.node, "error": type(exc).__name__}
        log.warning("no subscription on %s for the moment, polling meanwhile: %s", node, exc, extra=fields)
        self._logged = True

    def _serve_connection(self) -> None:
        """Serves one connection until it fails, which raises, or until the listener is no longer needed."""
        if not self.node:
            raise Unavailable("no node of the cluster serves the slot of a channel")
        connection = self._driver.pubsub(self.node)
        self._connection = connection
        try:
            pinged = time.monotonic()
            answered = True
            while not self._stopping:
                if self._woken.is_set():
                    self._woken.clear()
                    if self._subscriber.remove_if_idle(self):
                        return
                while self._commands:
                    connection.send(*self._commands.popleft())
                wait = max(0.0, pinged + PING_S - time.monotonic())
                message = connection.read(min(wait, LOOK_S) if connection.renews else wait)
                if connection.outdated:
                    raise Unavailable(f"{self.node}: the credentials of the subscriber's connection run out")
                if message is not None:
                    answered = True
                    self._handle(message)
                elif time.monotonic() - pinged >= PING_S:
                    if not answered:
                        raise Unavailable(f"{self.node} has not answered a PING for {PING_S:g} s")
                    connection.send("PING")
                    pinged, answered = time.monotonic(), False
        finally:
            self._connection = None
            connection.close()

    def _handle(self, message: list[object]) -> None:
        kind = message[0]
        if kind == b"smessage":
            self._subscriber.received(_text(message[1]), _text(message[2]))
        elif kind == b"ssubscribe":
            if self._logged and self._unsubscribed_since is not None:
                lasted = time.monotonic() - self._unsubscribed_since
                fields = {"node": self.node, "seconds": lasted}
                log.warning("subscribed on %s again after %.1f s", self.node, lasted, extra=fields)
            self._logged, self._unsubscribed_since, self._backoff_s, self.refused = False, None, FIRST_BACKOFF_S, ""
            self._subscriber.confirmed(_text(message[1]), self.node)
        elif kind == b"sunsubscribe" and message[1] is not None:
            # Unsubscribed by us, and then the channel is unknown; or by the server, because the slot has moved.
            self._subscriber.subscription_lost(self.node, _text(message[1]))


def _text(word: object) -> str:
    return text_of(word) if isinstance(word, bytes) else str(word)
