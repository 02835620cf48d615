"""Many calls at once over many nodes, by one thread: the loop behind ``Driver.call_all``.

Each node has a lane: one wire, at most ``DEPTH`` calls sent and unanswered on it, and a queue of calls packed
for it. The loop pulls one call at a time while any node could do with one, listens to all wires at once, and
yields answers as they come. A call that meets a fault is judged like any other (``patience``) and goes back
to the lane it now belongs to, after its pause, while the others go on.
"""

from __future__ import annotations

import heapq
import itertools
import random
import selectors
import ssl
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from hiredis import HiredisError

from shardq.calls.request import Command
from shardq.drivers.dial import INCOMPLETE
from shardq.drivers.faults import ErrorReply, Fault, of_exception, of_reply, timed_out, unserved
from shardq.drivers.patience import Errand
from shardq.drivers.pool import Node
from shardq.drivers.routes import Routes
from shardq.drivers.wire import CHUNK, HEAR_OUT_S, READ_TIMEOUT_S, Wire
from shardq.errors import ShardqError

T = TypeVar("T")

# The server works on what was sent while the caller packs thousands of tasks more: with 2 it ran dry at every window
# of push_iter (245,000 tasks/s; with 16 or more 350,000-420,000).
DEPTH = 16
# Calls are sent beyond the second only up to this much unanswered: a slow server would only hold more memory.
DEPTH_BYTES = 1 << 20
# How many calls for each node may be pulled and not yet sent. Enough that a run of calls for one node hides
# calls for another only when it is longer; each may hold a batch of 1 MiB.
LOOK_AHEAD = 4
# All lanes stand still while one connects: a node that hangs in its hand-shake is left after this long, and then
# left alone for as long again. Enough for TLS over a few hundred milliseconds of round trip.
DIAL_TIMEOUT_S = 1.0

_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_END: Any = object()


class Lane:
    """One node's wire and what is under way on it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.wire: Wire | None = None
        self.sent: deque[Errand[Any] | None] = deque()
        """In the order of their answers. None: an answer to skip, of ASKING."""
        self.queue: deque[Errand[Any]] = deque()
        self.rest = memoryview(b"")
        """What the socket has not taken yet, of the last one sent."""
        self.unanswered = 0
        """Bytes of all that is sent."""
        self.heard = 0.0
        """When the server last said something, or was first asked: its silence counts from there."""

    @property
    def full(self) -> bool:
        sent = len(self.sent)
        return sent >= DEPTH or (sent >= 2 and self.unanswered >= DEPTH_BYTES)

    @property
    def busy(self) -> bool:
        return self.full or bool(self.queue)

    @property
    def silent_at(self) -> float:
        """When the oldest unanswered call is given up on this wire."""
        oldest = next(errand for errand in self.sent if errand is not None)
        return min(self.heard + READ_TIMEOUT_S, oldest.deadline)


class Lanes(Generic[T]):
    """One run of ``call_all``."""

    def __init__(self, calls: Iterable[Command[T]], routes: Routes, *, timeout: float) -> None:
        self._calls = iter(calls)
        self._routes = routes
        self._timeout = timeout
        self._lanes: dict[str, Lane] = {}
        self._selector = selectors.PollSelector()
        """Of the kind that takes no file descriptor: there may be none left."""
        self._exhausted = False
        self._ready: deque[Errand[T]] = deque()
        """To be routed now."""
        self._paused: list[tuple[float, int, Errand[T]]] = []
        """A heap: when to route them again, and a number that breaks ties."""
        self._numbers = itertools.count()
        self._done: deque[tuple[Command[T], T | ShardqError]] = deque()

    def run(self) -> Iterator[tuple[Command[T], T | ShardqError]]:
        """Carry all calls out. Closed early, it leaves no wire behind that is out of step."""
        try:
            while True:
                self._end_pauses()
                hungry = self._hungry()
                if hungry:
                    call = next(self._calls, _END)
                    if call is _END:
                        self._exhausted = True
                    else:
                        self._ready.append(Errand(call, now=time.monotonic(), timeout=self._timeout))
                while self._ready:
                    self._route(self._ready.popleft())
                for lane in self._lanes.values():
                    self._feed(lane)
                if not self._done and not self._ready:
                    if self._exhausted and not self._paused and not self._under_way():
                        return
                    self._listen(0.0 if hungry and not self._exhausted else self._patience())
                while self._done:
                    yield self._done.popleft()
        except BaseException:
            self._hear_out()
            raise
        finally:
            for lane in self._lanes.values():
                self._leave(lane)
            self._selector.close()

    def _hear_out(self) -> None:
        """The caller was interrupted: reads those answers under way of which somebody has to know what they say."""
        until = time.monotonic() + HEAR_OUT_S
        for lane in self._lanes.values():
            while lane.wire is not None and any(errand is not None and errand.call.hear_out for errand in lane.sent):
                answer = lane.wire.receive(until - time.monotonic())
                if isinstance(answer, Fault):
                    break
                errand = lane.sent.popleft()
                if errand is not None:
                    errand.heard_out(answer)

    # ---- what to do next

    def _hungry(self) -> bool:
        """Some node could take one more call, and few are waiting for others."""
        if self._exhausted:
            return False
        nodes = max(1, len(self._routes.map.nodes))
        waiting = len(self._paused) + len(self._ready) + sum(len(lane.queue) for lane in self._lanes.values())
        return waiting < LOOK_AHEAD * nodes and sum(lane.busy for lane in self._lanes.values()) < nodes

    def _under_way(self) -> bool:
        return any(lane.sent or lane.queue for lane in self._lanes.values())

    def _patience(self) -> float:
        """How long to listen when there is nothing else to do."""
        until = [lane.silent_at for lane in self._lanes.values() if lane.sent]
        if self._paused:
            until.append(self._paused[0][0])
        return max(0.0, min(until) - time.monotonic()) if until else 0.0

    def _end_pauses(self) -> None:
        now = time.monotonic()
        while self._paused and self._paused[0][0] <= now:
            self._ready.append(heapq.heappop(self._paused)[2])

    # ---- sending

    def _route(self, errand: Errand[T]) -> None:
        address = self._routes.target(errand)
        if address is None:
            self._met(errand, unserved(errand.request.slot), self._routes.settings.safe_url)
            return
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = Lane(self._routes.node(address))
        lane.queue.append(errand)

    def _feed(self, lane: Lane) -> None:
        """Send what the lane has room for."""
        while lane.queue and not lane.rest and not lane.full:
            errand = lane.queue.popleft()
            if lane.wire is None:
                begun = time.monotonic()
                lane.node = self._routes.node(lane.node.address)  # the map may have dropped it, and named it again
                wire = lane.node.take(min(errand.deadline, begun + DIAL_TIMEOUT_S), wait=False)
                if isinstance(wire, Fault):
                    alone = time.monotonic() - begun
                    queue, lane.queue = lane.queue, deque()
                    for each in (errand, *queue):
                        self._met(each, wire, lane.node.address, pause_s=alone)
                    return
                lane.wire = wire
                wire.sock.settimeout(0)
                self._selector.register(wire.sock, selectors.EVENT_READ, lane)
            if not lane.sent:
                lane.heard = time.monotonic()
            lane.sent.extend([None] * (errand.answers - 1))
            lane.sent.append(errand)
            lane.rest = memoryview(errand.packed())
            errand.size = len(lane.rest)
            lane.unanswered += errand.size
            self._write(lane, lane.wire)

    def _write(self, lane: Lane, wire: Wire) -> None:
        try:
            while lane.rest:
                lane.rest = lane.rest[wire.sock.send(lane.rest) :]
        except _WOULD_BLOCK:
            self._selector.modify(wire.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, lane)
        except OSError as exc:
            self._lost(lane, of_exception(exc, sent=True))
        else:
            if self._selector.get_key(wire.sock).events != selectors.EVENT_READ:
                self._selector.modify(wire.sock, selectors.EVENT_READ, lane)

    # ---- receiving

    def _listen(self, timeout: float) -> None:
        heard = set()
        for key, events in self._selector.select(timeout):
            lane: Lane = key.data
            heard.add(lane)
            if events & selectors.EVENT_WRITE and lane.wire is not None:
                self._write(lane, lane.wire)
            if events & selectors.EVENT_READ and lane.wire is not None:
                self._read(lane, lane.wire)
        now = time.monotonic()
        # Only where nothing was to be read: whoever pulls on us may have been away for longer than that.
        for lane in self._lanes.values():
            if lane.sent and lane not in heard and now >= lane.silent_at:
                self._lost(lane, timed_out(now - lane.heard))

    def _read(self, lane: Lane, wire: Wire) -> None:
        lane.heard = time.monotonic()
        try:
            while True:
                chunk = wire.sock.recv(CHUNK)
                if not chunk:
                    raise ConnectionResetError("the server closed the connection")
                wire.reader.feed(chunk)
                while (answer := wire.reader.gets()) is not INCOMPLETE:
                    errand = lane.sent.popleft()
                    if errand is not None:
                        lane.unanswered -= errand.size
                        self._answered(errand, answer, lane.node.address)
                # TLS holds bytes back that the selector can't see.
                if not (isinstance(wire.sock, ssl.SSLSocket) and wire.sock.pending()):
                    return
        except _WOULD_BLOCK:
            return
        except (OSError, HiredisError, IndexError) as exc:  # IndexError: an answer that nobody asked for
            self._lost(lane, of_exception(exc, sent=True))

    def _answered(self, errand: Errand[T], answer: Any, node: str) -> None:
        if isinstance(answer, ErrorReply):
            self._met(errand, of_reply(answer.text, asked=node), node)
            return
        try:
            self._done.append((errand.call, errand.request.decode(answer)))
        except ShardqError as exc:
            self._done.append((errand.call, exc))

    # ---- faults

    def _met(self, errand: Errand[T], fault: Fault, node: str, *, pause_s: float = 0.0) -> None:
        """Do what patience says, pausing at least ``pause_s``."""
        now = time.monotonic()
        try:
            step = errand.met(fault, now=now, node=node, chance=random.random())
        except ShardqError as exc:
            self._done.append((errand.call, exc))
            return
        self._routes.act(step)
        pause_s = max(pause_s, step.pause_s)
        if pause_s:
            heapq.heappush(self._paused, (now + pause_s, next(self._numbers), errand))
        else:
            self._ready.append(errand)

    def _lost(self, lane: Lane, fault: Fault) -> None:
        """The wire died with all that was sent on it; what was not sent whole was not executed."""
        wire, lane.wire = lane.wire, None
        sent, lane.sent = lane.sent, deque()
        rest, lane.rest = lane.rest, memoryview(b"")
        lane.unanswered = 0
        if wire is not None:
            self._selector.unregister(wire.sock)
            lane.node.drop(wire)
        for place, errand in enumerate(sent, 1):
            if errand is not None:
                unsent = place == len(sent) and bool(rest)
                self._met(errand, fault.before_sending() if unsent else fault, lane.node.address)

    def _leave(self, lane: Lane) -> None:
        if lane.wire is None:
            return
        self._selector.unregister(lane.wire.sock)
        if lane.sent or lane.rest:
            lane.node.drop(lane.wire)
        else:
            lane.wire.used = time.monotonic()
            lane.node.give(lane.wire)
