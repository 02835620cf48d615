"""Pipelining: many calls at once over many nodes, by one thread. The loop behind ``Driver.call_all``.

Each node has a pipeline: one connection, at most ``DEPTH`` calls in flight on it, and a queue of calls to send. The
loop pulls one call at a time while any node could take one, listens to all connections at once, and yields answers as
they come. A call that meets a fault is retried like any other (``retry``): after its backoff it goes to the pipeline
where it belongs then, while the others go on. Where there are several nodes each connects in a thread of its own: one
that hangs in its hand-shake holds up no call for another. A call whose time is over in a queue ends without a trip.
"""

from __future__ import annotations

import heapq
import itertools
import math
import selectors
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from threading import get_ident
from typing import Any, Generic, TypeVar

from hiredis import HiredisError

from shardq.core.calls.request import Command
from shardq.core.drivers.connection import CHUNK, FINISH_S, READ_TIMEOUT_S, Connection, ConnectionPool
from shardq.core.drivers.faults import OVERDUE, ErrorReply, Fault, of_exception, timed_out, unasked, unserved
from shardq.core.drivers.retry import RetryingCall, Spare
from shardq.core.drivers.router import NodeRouter
from shardq.core.drivers.sockets import INCOMPLETE
from shardq.core.locks import raised_by_handler
from shardq.core.threads import begun, first_of
from shardq.errors import ShardqError, Unanswered

K = TypeVar("K")
T = TypeVar("T")

# The server works on what was sent while the caller packs thousands of tasks more: with 2 it ran dry at every chunk
# of push_iter (245,000 tasks/s; with 16 or more 350,000-420,000).
DEPTH = 16
# Calls are sent beyond the second only up to this much unanswered: a slow server would only hold more memory.
DEPTH_BYTES = 1 << 20
# How many calls for each node may be pulled and not yet sent. Enough that a run of calls for one node hides
# calls for another only when it is longer; each may hold a batch of 1 MiB.
LOOK_AHEAD = 4
# A caller who takes longer with an answer is away: the calls meanwhile lose none of their time by that.
AWAY_S = 0.1
# The time between two looks at a connection that is being made while calls to other nodes are in flight.
CONNECT_LOOK_S = 0.005

_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def _parsed(connection: Connection) -> Any:
    """The next answer that has come, ``INCOMPLETE`` without one, or a ``Fault``."""
    try:
        return connection.reader.gets()
    except HiredisError as exc:
        return of_exception(exc, sent=True)


def left_behind(node: str) -> Unanswered:
    """The error of a call that was given up although it had time."""
    return Unanswered(f"{node or 'a node'} has not answered yet, while others have: it is not waited for")


class Pipeline:
    """One node's connection and the calls in flight on it."""

    def __init__(self, node: ConnectionPool) -> None:
        self.node = node
        self.connection: Connection | None = None
        self.sent: deque[RetryingCall[Any] | None] = deque()
        """Calls in flight, in the order of their answers. None: an answer to skip, of ASKING."""
        self.queue: deque[RetryingCall[Any]] = deque()
        self.rest: memoryview = memoryview(b"")  # the part of the last call that the socket has not taken yet
        self.unanswered = 0  # the bytes of all calls in flight
        self.heard: float = 0.0
        """The time of the server's last answer, or of the first call: its silence counts from there."""
        self.connecting: Future[Connection | Fault] | None = None  # the connection that a thread makes
        self.is_torn: bool = False
        """True while something has come that is not yet known for the answer of a call: to one who is interrupted there
        the calls in flight and what comes for them do not belong together any more.
        """

    @property
    def full(self) -> bool:
        sent = len(self.sent)
        return sent >= DEPTH or (sent >= 2 and self.unanswered >= DEPTH_BYTES)

    @property
    def busy(self) -> bool:
        return self.full or bool(self.queue)

    @property
    def silent_at(self) -> float:
        """The time at which the oldest call in flight is given up on this connection."""
        oldest = next(retrying for retrying in self.sent if retrying is not None)
        return min(self.heard + READ_TIMEOUT_S, oldest.deadline)


class Pipelines(Generic[K, T]):
    """One run of ``call_all``."""

    def __init__(
        self,
        calls: Iterable[tuple[K, Command[T]]],
        router: NodeRouter,
        *,
        timeout: float,
        deadline: float | Callable[[K], float],
        spare: Spare | None = None,
    ) -> None:
        self._calls = iter(calls)
        self._router = router
        self._timeout = timeout
        self._deadline = deadline
        self._spare = spare
        self._given_up_at = math.inf if spare is None or spare.worth is not None else spare.until
        """The time after which nothing is waited for."""
        self._pipelines: dict[str, Pipeline] = {}
        self._selector = selectors.PollSelector()  # a selector that takes no file descriptor: there may be none left
        self._exhausted = False
        self._ready: deque[RetryingCall[T]] = deque()  # calls to be routed now
        self._paused: list[tuple[float, int, RetryingCall[T]]] = []
        """A heap: when to route a call again, a number that breaks ties, and the call."""
        self._numbers = itertools.count()
        self._done: deque[tuple[K, T | ShardqError]] = deque()

    def run(self) -> Iterator[tuple[K, T | ShardqError]]:
        """Carries all calls out. Closed early, it leaves no connection out of step behind."""
        try:
            while True:
                self._end_pauses()
                hungry = self._hungry()
                if hungry:
                    pulled = next(self._calls, None)
                    if pulled is None:
                        self._exhausted = True
                    else:
                        key, call = pulled
                        deadline = self._deadline_of(key)
                        self._ready.append(RetryingCall(call, timeout=self._timeout, deadline=deadline, key=key))
                while self._ready:
                    self._route(self._ready.popleft())
                for pipeline in self._pipelines.values():
                    self._feed(pipeline)
                if not self._done and not self._ready:
                    if self._exhausted and not self._paused and not self._under_way():
                        return
                    self._listen(0.0 if hungry and not self._exhausted else self._listen_for_s())
                if self._done:
                    left = time.monotonic()
                    while self._done:
                        yield self._done.popleft()
                    self._exhausted = False  # one may have waited for an answer
                    if callable(self._deadline) and time.monotonic() - left > AWAY_S:
                        self._come_back(self._deadline)
        except BaseException:
            self._finish_on_interrupt()
            raise
        finally:
            for pipeline in self._pipelines.values():
                self._leave(pipeline)
            self._selector.close()

    def _finish_on_interrupt(self) -> None:
        """Reads, after an interrupt, the answers of calls in flight that tell what the caller was given."""
        until = time.monotonic() + FINISH_S
        for pipeline in self._pipelines.values():
            while (
                pipeline.connection is not None
                and not pipeline.is_torn
                and any(retrying is not None and retrying.call.finish_on_interrupt for retrying in pipeline.sent)
            ):
                answer = pipeline.connection.receive(until - time.monotonic())
                if isinstance(answer, Fault):
                    break
                retrying = pipeline.sent.popleft()
                if retrying is not None:
                    retrying.finished(answer)

    # ---- what to do next

    def _deadline_of(self, key: K) -> float:
        return min(self._given_up_at, self._deadline(key) if callable(self._deadline) else self._deadline)

    def _give_up_later(self, until: float) -> None:
        """Ends all calls at that time, if they are not over before."""
        self._given_up_at = until
        for retrying in self._unanswered():
            retrying.bound(min(retrying.deadline, until))

    def _come_back(self, deadline: Callable[[K], float]) -> None:
        """Moves the ends of all calls: the caller was away, and that was not their time."""
        now = time.monotonic()
        for pipeline in self._pipelines.values():
            pipeline.heard = now
        for retrying in self._unanswered():
            retrying.bound(deadline(retrying.key))

    def _unanswered(self) -> Iterator[RetryingCall[T]]:
        """All calls that were pulled and have no answer yet."""
        yield from self._ready
        yield from (retrying for _, _, retrying in self._paused)
        for pipeline in self._pipelines.values():
            yield from (retrying for retrying in pipeline.sent if retrying is not None)
            yield from pipeline.queue

    def _hungry(self) -> bool:
        """True if some node could take one more call, and few calls wait for others."""
        if self._exhausted:
            return False
        nodes = max(1, len(self._router.map.nodes))
        waiting = (
            len(self._paused) + len(self._ready) + sum(len(pipeline.queue) for pipeline in self._pipelines.values())
        )
        return waiting < LOOK_AHEAD * nodes and sum(pipeline.busy for pipeline in self._pipelines.values()) < nodes

    def _under_way(self) -> bool:
        return any(pipeline.sent or pipeline.queue for pipeline in self._pipelines.values())

    def _listen_for_s(self) -> float:
        """The time to listen when there is nothing else to do."""
        until = [pipeline.silent_at for pipeline in self._pipelines.values() if pipeline.sent]
        until += [pipeline.queue[0].deadline for pipeline in self._pipelines.values() if pipeline.queue]
        if self._paused:
            until.append(min(self._paused[0][0], self._given_up_at))
        return max(0.0, min(until) - time.monotonic()) if until else 0.0

    def _end_pauses(self) -> None:
        now = time.monotonic()
        while self._paused and self._paused[0][0] <= now:
            self._ready.append(heapq.heappop(self._paused)[2])

    # ---- sending

    def _route(self, retrying: RetryingCall[T]) -> None:
        address = self._router.target(retrying)
        if address is None:
            self._failed_with(retrying, unserved(retrying.request.slot), None)
            return
        pipeline = self._pipelines.get(address)
        if pipeline is None:
            pipeline = self._pipelines[address] = Pipeline(self._router.pool(address))
        pipeline.queue.append(retrying)

    def _feed(self, pipeline: Pipeline) -> None:
        """Sends what the pipeline has room for."""
        now = time.monotonic() if pipeline.queue else 0.0
        while pipeline.queue and now >= pipeline.queue[0].deadline:
            self._failed_with(pipeline.queue.popleft(), OVERDUE, pipeline.node.address)
        while pipeline.queue and not pipeline.rest and not pipeline.full:
            if pipeline.connection is None and not self._connected(pipeline, pipeline.queue[0].deadline):
                return
            assert pipeline.connection is not None, "just connected"
            retrying = pipeline.queue.popleft()
            if not pipeline.sent:
                pipeline.heard = time.monotonic()
            packed = memoryview(retrying.packed())
            pipeline.sent.extend([*[None] * (retrying.answers - 1), retrying])
            pipeline.rest = packed
            pipeline.unanswered += len(retrying.sent)
            self._write(pipeline, pipeline.connection)

    def _connected(self, pipeline: Pipeline, deadline: float) -> bool:
        """Returns True once the pipeline has a connection. Where there is no other node, that is waited for."""
        connecting, pipeline.connecting = pipeline.connecting, None
        connection: Connection | Fault | None
        if connecting is None:
            # The map may have dropped the node, and named it again.
            pipeline.node = self._router.pool(pipeline.node.address)
            if len(self._router.map.nodes) == 1:
                connection = pipeline.node.take(deadline)
            elif (connection := pipeline.node.take_idle()) is None:
                pipeline.connecting = begun(partial(pipeline.node.take, deadline, wait=False), "shardq-connect")
                return False
        elif not connecting.done():
            pipeline.connecting = connecting
            return False
        else:
            connection = connecting.result()
            if isinstance(connection, Connection):
                connection.place.holder = get_ident()
        if isinstance(connection, Fault):
            queue, pipeline.queue = pipeline.queue, deque()
            for each in queue:
                self._failed_with(each, connection, pipeline.node.address)
            return False
        connection.sock.settimeout(0)
        self._selector.register(connection.sock, selectors.EVENT_READ, pipeline)
        connection.in_step = False
        pipeline.connection = connection  # last: it is whole, and one who is interrupted before leaves nothing behind
        return True

    def _write(self, pipeline: Pipeline, connection: Connection) -> None:
        try:
            while pipeline.rest:
                pipeline.rest = pipeline.rest[connection.sock.send(pipeline.rest) :]
        except _WOULD_BLOCK:
            self._selector.modify(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, pipeline)
        except OSError as exc:
            if raised_by_handler(exc):
                raise
            self._lost(pipeline, of_exception(exc, sent=True))
        else:
            if self._selector.get_key(connection.sock).events != selectors.EVENT_READ:
                self._selector.modify(connection.sock, selectors.EVENT_READ, pipeline)

    # ---- receiving

    def _listen(self, timeout: float) -> None:
        heard = set()
        connecting = [each.connecting for each in self._pipelines.values() if each.connecting is not None]
        if connecting and not self._selector.get_map():
            first_of(connecting, timeout)
            return
        if connecting:
            timeout = min(timeout, CONNECT_LOOK_S)
        for key, events in self._selector.select(timeout):
            pipeline: Pipeline = key.data
            heard.add(pipeline)
            if events & selectors.EVENT_WRITE and pipeline.connection is not None:
                self._write(pipeline, pipeline.connection)
            if events & selectors.EVENT_READ and pipeline.connection is not None:
                self._read(pipeline, pipeline.connection)
        now = time.monotonic()
        # Only where nothing was to be read: the caller, who pulls from this generator, may have been away for longer.
        for pipeline in self._pipelines.values():
            if pipeline.sent and pipeline not in heard and now >= pipeline.silent_at:
                self._lost(pipeline, timed_out(now - pipeline.heard))

    def _read(self, pipeline: Pipeline, connection: Connection) -> None:
        pipeline.heard = time.monotonic()
        while True:
            pipeline.is_torn = True
            try:
                chunk = connection.sock.recv(CHUNK)
                if not chunk:
                    raise ConnectionResetError("the server closed the connection")
                connection.reader.feed(chunk)
            except _WOULD_BLOCK:
                pipeline.is_torn = False
                return
            except OSError as exc:
                if raised_by_handler(exc):
                    raise
                self._lost(pipeline, of_exception(exc, sent=True))
                return
            # Nothing else is guarded: an error in what follows must not pass for one of this connection.
            while (answer := _parsed(connection)) is not INCOMPLETE:
                if not pipeline.sent and not isinstance(answer, Fault):
                    answer = unasked(answer, connection.address)
                if isinstance(answer, Fault):
                    self._lost(pipeline, answer)
                    return
                retrying = pipeline.sent.popleft()
                pipeline.is_torn = False
                if retrying is not None:
                    pipeline.unanswered -= len(retrying.sent)
                    self._answered(retrying, answer, pipeline.node.address)
                pipeline.is_torn = True
            pipeline.is_torn = False
            # TLS holds bytes back that the selector can't see.
            if not (isinstance(connection.sock, ssl.SSLSocket) and connection.sock.pending()):
                return

    def _answered(self, retrying: RetryingCall[T], answer: Any, node: str) -> None:
        if isinstance(answer, ErrorReply):
            self._failed_with(retrying, answer, node)
            return
        try:
            result = retrying.result(answer, node, self._router.journal)
        except ShardqError as exc:
            self._done.append((retrying.key, exc))
            return
        self._done.append((retrying.key, result))
        if self._spare is not None and self._given_up_at == math.inf and self._spare.is_worth(result):
            self._give_up_later(self._spare.until)

    # ---- faults

    def _failed_with(self, retrying: RetryingCall[T], answer: ErrorReply | Fault, node: str | None) -> None:
        """Retries a call, or gives it up."""
        now = time.monotonic()
        try:
            step = self._router.failed_with(answer, retrying, node)
        except ShardqError as exc:
            self._done.append((retrying.key, exc))
            return
        self._router.act(step, retrying.deadline)
        if step.backoff_s:
            heapq.heappush(self._paused, (now + step.backoff_s, next(self._numbers), retrying))
        else:
            self._ready.append(retrying)

    def _lost(self, pipeline: Pipeline, fault: Fault) -> None:
        """Handles a lost connection. What was not sent as a whole was not executed."""
        connection, pipeline.connection = pipeline.connection, None
        sent, pipeline.sent = pipeline.sent, deque()
        rest, pipeline.rest = pipeline.rest, memoryview(b"")
        pipeline.unanswered = 0
        if connection is not None:
            self._selector.unregister(connection.sock)
            pipeline.node.drop(connection)
        for place, retrying in enumerate(sent, 1):
            if retrying is not None:
                unsent = place == len(sent) and bool(rest)
                self._failed_with(retrying, fault.before_sending() if unsent else fault, pipeline.node.address)

    def _leave(self, pipeline: Pipeline) -> None:
        if pipeline.connecting is not None:
            pipeline.connecting.add_done_callback(partial(_returned, pipeline.node))
        connection, pipeline.connection = pipeline.connection, None
        if connection is None:
            return
        if pipeline.sent or pipeline.rest or pipeline.is_torn:
            pipeline.node.abandon(connection)
        else:
            connection.in_step = True
            connection.used = time.monotonic()
            pipeline.node.give(connection)


def _returned(node: ConnectionPool, made: Future[Connection | Fault]) -> None:
    """Gives a connection to the pool that came after its user had left."""
    if made.exception() is None and isinstance(connection := made.result(), Connection):
        node.give(connection)
