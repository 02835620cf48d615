"""The connections of a port: who is let in, for how long, and who has to go for others. The probes and the door both
serve what a ``Listener`` accepts.

A client is *awaited* while it has to send its request or to take its answer, and has ``REQUEST_S`` for that. A client
is *kept* between two requests, for ``KEPT_S``: pools of clients keep theirs, and a POST that meets its end fails. When
there are too many, one that is kept goes first, then one that is awaited: of each kind the one that has been so for
longest. A client whose request has come is left alone until its answer is made.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from shardq.core.drivers.descriptors import allowed, scarce
from shardq.errors import InvalidOption

log: logging.Logger = logging.getLogger("shardq.http")

REQUEST_S = 5.0
"""A client has so long to send the head of its request, for each part of a body (``server.PART``), and to take the
answer, however slowly it does.
"""

KEPT_S = 75.0
"""A connection that is kept ends when no other request follows within that time. Clients are told 60 s."""

TICK_S = 0.1
"""The pause between two looks at clients that are late, and after an ``accept`` that failed."""

QUIET_S = 60.0
"""Too many open files are logged again after so long without."""

BACKLOG = 1024
"""Connections that the system keeps until they are accepted."""


def listening(host: str, port: int, *, advice: str) -> socket.socket:
    """Listens there. ``advice``: what to give in place of an address that is not possible."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as exc:
        why = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
        raise InvalidOption(f"can't listen at {host}:{port}: {why}; give {advice}") from exc


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Listener:
    """A thread that accepts clients, and hands each to ``serve``, which waits for none of them.

    Whoever serves a client says from any thread when it is ``answered``, when it is ``awaited`` again, and that it has
    ``left``, before its socket is closed. At most ``most`` are connected, and half as many from one address. A process
    that may have few files open keeps half of them for other things.
    """

    def __init__(
        self, listener: socket.socket, serve: Callable[[socket.socket], None], *, most: int, name: str
    ) -> None:
        self._socket = listener
        self._socket.settimeout(TICK_S)
        self._serve = serve
        self._most = min(most, allowed() // 2)
        self._stopping = self._closed = False
        self._quiet_until = 0.0
        self._changed = threading.Condition()
        """Guards the fields below. Notified when a client has left."""
        self._clients: dict[socket.socket, str] = {}
        """Client → its address."""
        self._awaited: dict[socket.socket, float] = {}
        """Clients that have to do something, and since when, the oldest first."""
        self._kept: dict[socket.socket, float] = {}
        """Clients that may send another request, likewise."""
        self._ended: set[socket.socket] = set()
        """Clients that were told to go, and have not left yet."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    def close(self) -> None:
        """Accepts nobody from now on. Clients that are connected still have their time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed)

    def answered(self, client: socket.socket) -> None:
        """Its request has come, or a part of it, and the answer is being made."""
        with self._changed:
            self._forget(client)

    def awaited(self, client: socket.socket) -> None:
        """It has to send a request, or to take an answer. Its time runs on if it was awaited before."""
        with self._changed:
            if client in self._clients and client not in self._ended:
                self._kept.pop(client, None)
                self._awaited.setdefault(client, time.monotonic())

    def kept(self, client: socket.socket) -> None:
        """It has its answer, and may send another request."""
        with self._changed:
            if client in self._clients and client not in self._ended:
                self._awaited.pop(client, None)
                self._kept.setdefault(client, time.monotonic())

    def left(self, client: socket.socket) -> None:
        with self._changed:
            self._clients.pop(client, None)
            self._forget(client)
            self._ended.discard(client)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._stopping:
                with self._changed:
                    self._end_late()
                self._accept()
        finally:
            self._socket.close()
            with self._changed:
                self._closed = True
                self._changed.notify_all()
        with self._changed:
            while self._clients:
                self._changed.wait(TICK_S)
                self._end_late()

    def _accept(self) -> None:
        """Waits for a client, for a moment."""
        try:
            client, address = self._socket.accept()
        except TimeoutError:
            return
        except OSError as exc:
            with self._changed:
                if scarce(exc):
                    self._end_half(exc)
                self._changed.wait_for(lambda: self._stopping, TICK_S)
            return
        client.setblocking(True)
        with contextlib.suppress(OSError):  # it has gone
            # asyncio does that only for sockets whose protocol is named, and an accepted one has none: else the body of
            # an answer waits until the client has confirmed its head, 40 ms
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        if self._admitted(client, address[0]):
            try:
                self._serve(client)
                return
            except Exception:  # noqa: BLE001  there is no thread to be had, or the server ends
                self.left(client)
        client.close()

    def _admitted(self, client: socket.socket, address: str) -> bool:
        """Counts the client, and ends another one if there is no room. Returns False if none can go."""
        with self._changed:
            of_address = [each for each, of in self._clients.items() if of == address and each not in self._ended]
            if len(of_address) >= self._most // 2 and not self._end(min(of_address, key=self._order)):
                return False
            while len(self._clients) >= self._most and not self._stopping:
                if len(self._clients) - len(self._ended) >= self._most:
                    self._end(next(iter(self._kept), None) or next(iter(self._awaited), None))
                self._changed.wait(TICK_S)
                self._end_late()
            if self._stopping:
                return False
            self._clients[client] = address
            self._awaited[client] = time.monotonic()
            return True

    def _order(self, client: socket.socket) -> tuple[bool, float]:
        """The first by this goes first."""
        if (since := self._kept.get(client)) is not None:
            return False, since
        return True, self._awaited.get(client, float("inf"))

    def _end_late(self) -> None:
        for waiting, longest_s in ((self._awaited, REQUEST_S), (self._kept, KEPT_S)):
            while (first := next(iter(waiting), None)) and time.monotonic() - waiting[first] >= longest_s:
                self._end(first)

    def _forget(self, client: socket.socket) -> bool:
        """Forgets that it is waited for. Returns False if it is not."""
        awaited, kept = self._awaited.pop(client, None), self._kept.pop(client, None)
        return awaited is not None or kept is not None

    def _end(self, client: socket.socket | None) -> bool:
        """Ends a client if it is waited for. Whoever serves it reads the end, or can't write, and closes it."""
        if client is None or not self._forget(client):
            return False
        self._ended.add(client)
        with contextlib.suppress(OSError):  # it has gone by itself
            client.shutdown(socket.SHUT_RDWR)
        return True

    def _end_half(self, exc: OSError) -> None:
        """Ends half of the clients that are waited for, as no file can be opened."""
        if time.monotonic() > self._quiet_until:
            place = url_of(*self._socket.getsockname()[:2])
            log.warning("can't accept connections at %s: %s; idle ones are ended, and it is tried again", place, exc)
        self._quiet_until = time.monotonic() + QUIET_S
        waiting = [*self._kept, *self._awaited]
        for each in waiting[: (len(waiting) + 1) // 2]:
            self._end(each)
