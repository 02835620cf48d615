"""The network of a simulated run: sockets as the drivers use them, links to nodes, latencies, cuts and partitions.

Bytes of a link arrive in their order, each batch after a latency of its own. A link that is cut tells both ends, at
once or after a while; what was under way is lost. Between a process and a node that are parted nothing arrives until
they are joined again, and nobody is told: then what was sent arrives, also of a link that was closed meanwhile, unless
it was closed so that the rest is dropped (``SO_LINGER`` of zero).
"""

from __future__ import annotations

import errno
import os
import random
import selectors
import socket
import struct
from collections.abc import Callable
from itertools import count
from typing import Any, Literal, Protocol

from tests.sim.world.hub import Hub, Process, hub

FIRST_NUMBER = 1_000_000
"""Numbers of simulated sockets are above those of files."""

_real_write = os.write
_real_shutdown = socket.socket.shutdown
_sockets: dict[int, Readable] = {}


class Peer(Protocol):
    """A node, as its links see it."""

    name: str
    is_up: bool

    def linked(self, link: Link) -> None: ...

    def received(self, link: Link, data: bytes) -> None: ...

    def owes(self, link: Link) -> bool: ...

    def unlinked(self, link: Link) -> None: ...


class Network:
    """``latency_us`` is that of one way, at most, while nothing is wrong."""

    def __init__(self, its: Hub, seed: int) -> None:
        self.hub = its
        self.draw = random.Random(f"{seed}/network")
        self.latency_us = 300
        self.peers: dict[tuple[str, int], Peer] = {}
        self.links: list[Link] = []
        self.parted: set[tuple[str, str]] = set()
        """Processes and nodes between which nothing arrives."""
        self.slow_us: dict[str, int] = {}
        """Nodes whose every packet takes so much longer."""
        self.losing: dict[str, float] = {}
        """Processes and nodes, and how often a request of theirs, or its answer, ends its connection."""
        self.exhausted: set[str] = set()
        """Processes that have no file descriptors left."""
        self.lost: Callable[[str], object] = lambda process: None
        """Told when an answer may have been lost to a process."""

    def fate(self, link: Link) -> Literal["", "request", "answer"]:
        """What is lost of a request that has arrived."""
        share = max(self.losing.get(link.process.name, 0.0), self.losing.get(link.peer.name, 0.0))
        if not share or self.draw.random() >= share:
            return ""
        return self.draw.choice(("request", "answer", "answer"))

    def link(self, process: Process, where: tuple[str, int]) -> Link:
        link = Link(self, process, self.peers[where])
        self.links.append(link)
        return link

    def delay_us(self, link: Link) -> int:
        usual = self.draw.choice((20, 50, 100, self.latency_us))
        return self.draw.randint(1, usual) + self.slow_us.get(link.peer.name, 0)

    def is_parted(self, link: Link) -> bool:
        return (link.process.name, link.peer.name) in self.parted

    def part(self, process: str, node: str, seconds: float) -> None:
        self.parted.add((process, node))
        self.hub.after(seconds * 1e6, lambda: self._join(process, node))

    def _join(self, process: str, node: str) -> None:
        self.parted.discard((process, node))
        for link in list(self.links):
            if (link.process.name, link.peer.name) == (process, node):
                link.flow()

    def cut(self, some: Callable[[Link], bool]) -> int:
        """Cuts the links for which that is true. Returns their number."""
        cut = [link for link in self.links if some(link)]
        for link in cut:
            link.cut()
        return len(cut)


class Link:
    """One connection, between a process and a node."""

    numbers = count(1)

    def __init__(self, net: Network, process: Process, peer: Peer) -> None:
        self.net = net
        self.process = process
        self.peer = peer
        self.number = next(self.numbers)
        self.sock: Socket | None = None
        self.is_open = True
        self._out: list[bytes] = []
        """What was sent to the node and has not arrived."""
        self._in: list[bytes] = []
        self.process.ended.append(self.abandon)

    def send(self, data: bytes) -> None:
        """From the process."""
        self._out.append(data)
        self.net.hub.after(self.net.delay_us(self), self.flow)

    def answer(self, data: bytes) -> None:
        """From the node."""
        if self.is_open:
            self._in.append(data)
            self.net.hub.after(self.net.delay_us(self), self.flow)

    def flow(self) -> None:
        """Lets arrive what can."""
        if self.net.is_parted(self):
            return
        out, self._out = self._out, []
        for data in out:
            if self.peer.is_up:
                self.peer.received(self, data)
        given, self._in = self._in, []
        for data in given:
            if self.sock is not None and self.is_open:
                self.sock.arrived(data)
        if not self.is_open and not self._out:
            self._forget()

    def cut(self) -> None:
        """Ends it for both; what is under way is lost."""
        if not self.is_open:
            return
        self.is_open = False
        self.net.lost(self.process.name)
        self._out, self._in = [], []
        self._forget()
        if self.sock is not None:
            self.sock.ended()

    def close(self, *, drop: bool) -> None:
        """From the process. ``drop``: what has not arrived never does."""
        if self.is_open and (self._out or self._in or self.peer.owes(self)):
            self.net.lost(self.process.name)
        self.is_open = False
        if drop:
            self._out = []
        if not self._out:
            self._forget()

    def abandon(self) -> None:
        """The process died: what it has sent arrives nevertheless."""
        self.sock = None
        self.close(drop=False)

    def _forget(self) -> None:
        if self in self.net.links:
            self.net.links.remove(self)
            self.peer.unlinked(self)
        if self.abandon in self.process.ended:
            self.process.ended.remove(self.abandon)


class Readable:
    """What can be waited for: it has a number, as a file descriptor."""

    _numbers = count(FIRST_NUMBER)

    def __init__(self) -> None:
        self._number = next(self._numbers)
        self._timeout: float | None = None
        self._waiters: list[Callable[[], None]] = []
        _sockets[self._number] = self

    def is_readable(self) -> bool:
        raise NotImplementedError

    def fileno(self) -> int:
        return self._number

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def awaited(self, wake: Callable[[], None]) -> None:
        self._waiters.append(wake)

    def settimeout(self, timeout: float | None) -> None:
        self._check()
        self._timeout = timeout

    def gettimeout(self) -> float | None:
        return self._timeout

    def setblocking(self, blocking: bool) -> None:
        self.settimeout(None if blocking else 0.0)

    def close(self) -> None:
        _sockets.pop(self._number, None)
        self._number = -1
        self.wake()

    def _check(self) -> None:
        if self._number < 0:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def _wait(self) -> None:
        """Waits until it is readable, within its timeout."""
        its = hub()
        until_us = None if self._timeout is None else its.now_us + self._timeout * 1e6
        while not self.is_readable():
            left = None if until_us is None else (until_us - its.now_us) / 1e6
            if left is not None and left <= 0:
                if self._timeout == 0:
                    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
                raise TimeoutError("timed out")
            self._waiters.append(its.waiting())
            its.park(left)
            self._check()


class Socket(Readable):
    """Has the names of ``socket.socket`` that the drivers use."""

    family = socket.AF_INET

    def __init__(self, net: Network) -> None:
        if hub().current.process.name in net.exhausted:
            raise OSError(errno.EMFILE, "Too many open files")
        super().__init__()
        self._net = net
        self._link: Link | None = None
        self._data = bytearray()
        self._is_over = False
        self._drops = False

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        if (level, name) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self._drops = struct.unpack("ii", value) == (1, 0)

    def connect(self, where: tuple[str, int]) -> None:
        net, its = self._net, hub()
        peer = net.peers.get(where)
        process = its.current.process
        if peer is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        its.sleep(net.draw.randint(20, 400) / 1e6)
        if (process.name, peer.name) in net.parted:
            its.sleep(self._timeout if self._timeout is not None else 60.0)
            raise TimeoutError("timed out")
        if not peer.is_up:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        self._link = net.link(process, where)
        self._link.sock = self
        peer.linked(self._link)

    def is_readable(self) -> bool:
        return bool(self._data) or self._is_over or self._number < 0

    def arrived(self, data: bytes) -> None:
        self._data += data
        self.wake()

    def ended(self) -> None:
        self._is_over = True
        self.wake()

    def send(self, data: bytes | memoryview) -> int:
        self._check()
        if self._is_over or self._link is None or not self._link.is_open:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self._link.send(bytes(data))
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def recv(self, most: int) -> bytes:
        self._check()
        self._wait()
        if not self._data:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        data = bytes(self._data[:most])
        del self._data[:most]
        return data

    def shutdown(self, how: int) -> None:
        self.ended()
        if self._link is not None:
            self._link.close(drop=self._drops)

    def close(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            link.sock = None
            link.close(drop=self._drops)
        super().close()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Pipe(Readable):
    """One end of a pair of sockets within a process."""

    other: _Pipe

    def __init__(self) -> None:
        super().__init__()
        self._data = bytearray()

    def is_readable(self) -> bool:
        return bool(self._data)

    def send(self, data: bytes) -> int:
        self._check()
        self.other._data += data
        self.other.wake()
        return len(data)

    def recv(self, most: int) -> bytes:
        self._wait()
        data = bytes(self._data[:most])
        del self._data[:most]
        return data


def socketpair() -> tuple[_Pipe, _Pipe]:
    one, other = _Pipe(), _Pipe()
    one.other, other.other = other, one
    return one, other


def write(number: int, data: bytes) -> int:
    """In place of ``os.write``."""
    if number < FIRST_NUMBER:
        return _real_write(number, data)
    sock = _sockets.get(number)
    if not isinstance(sock, Socket):
        raise OSError(errno.EBADF, "Bad file descriptor")
    return sock.send(data)


def shutdown(sock: Any, how: int) -> None:
    """In place of the method of ``socket.socket`` that is called by its class."""
    if isinstance(sock, Socket):
        sock.shutdown(how)
    else:
        _real_shutdown(sock, how)


def _awaited(some: Callable[[], list[Readable]], seconds: float | None) -> None:
    """Waits until one of them is readable, or for so long."""
    its = hub()
    until_us = None if seconds is None else its.now_us + seconds * 1e6
    while not any(each.is_readable() for each in some()):
        left = None if until_us is None else (until_us - its.now_us) / 1e6
        if left is not None and left <= 0:
            return
        wake = its.waiting()
        for each in some():
            each.awaited(wake)
        its.park(left)


class Poll:
    """Has the names of ``select.poll``."""

    def __init__(self) -> None:
        self._registered: dict[int, Readable] = {}

    def register(self, what: Any, events: int = 0) -> None:
        number = what if isinstance(what, int) else what.fileno()
        if number not in _sockets:
            raise ValueError("it is closed")
        self._registered[number] = _sockets[number]

    def unregister(self, what: Any) -> None:
        del self._registered[what if isinstance(what, int) else what.fileno()]

    def poll(self, ms: float | None = None) -> list[tuple[int, int]]:
        _awaited(lambda: list(self._registered.values()), None if ms is None else ms / 1000)
        return [(number, 1) for number, each in self._registered.items() if each.is_readable()]


class Selector:
    """Has the names of ``selectors.PollSelector``. What is written is taken at once, so none is waited for."""

    def __init__(self) -> None:
        self._keys: dict[Readable, selectors.SelectorKey] = {}

    def register(self, what: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[what] = selectors.SelectorKey(what, what.fileno(), events, data)
        return key

    def modify(self, what: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.register(what, events, data if data is not None else self._keys[what].data)

    def unregister(self, what: Any) -> selectors.SelectorKey:
        return self._keys.pop(what)

    def get_key(self, what: Any) -> selectors.SelectorKey:
        return self._keys[what]

    def get_map(self) -> dict[Readable, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        writable = any(key.events & selectors.EVENT_WRITE for key in self._keys.values())
        _awaited(lambda: list(self._keys), 0.0 if writable else timeout)
        found = []
        for what, key in self._keys.items():
            ready = (selectors.EVENT_READ if what.is_readable() else 0) | selectors.EVENT_WRITE
            if ready & key.events:
                found.append((key, ready & key.events))
        return found

    def close(self) -> None:
        self._keys.clear()
