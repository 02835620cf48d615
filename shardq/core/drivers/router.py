"""Single calls of the sync driver: the pool of each node, the retries of a call, and the slot map, for threads.

``sync`` makes a whole driver of it. ``pipelines`` and ``owned`` ask it where a call goes, take connections from its
pools, and have it act on retry steps. The asyncio twin is in ``aio``.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from shardq.core import forks
from shardq.core.calls.request import Command, pack
from shardq.core.drivers.connection import FINISH_S, Connection, ConnectionPool, open_connection, probe
from shardq.core.drivers.conversations import drive
from shardq.core.drivers.election import Survey
from shardq.core.drivers.faults import OVERDUE, ErrorReply, Fault, unconnected, unserved
from shardq.core.drivers.outages import Outages
from shardq.core.drivers.questions import ASK_TIMEOUT_S, LOOK_TIMEOUT_S, Locate, Probe, Question
from shardq.core.drivers.retry import RetryingCall, RetryStep
from shardq.core.drivers.routing import CLOSED, FORKED, LOOK_EVERY_S, ConnectionCounts, DriverBase
from shardq.core.drivers.sentinels import survey
from shardq.core.drivers.settings import Settings
from shardq.core.locks import Latch, Living, Permits, raised_by_handler
from shardq.core.threads import begun
from shardq.errors import EngineClosed

T = TypeVar("T")


class NodeRouter(DriverBase):
    """Carries calls, one at a time in each thread. Has the pool of each node, and every connection that was opened."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        forks.watch(self, NodeRouter._forked)

    def _set_up(self) -> None:
        super()._set_up()
        self._pools: dict[str, ConnectionPool] = {}
        self.borrowers: Permits = Permits(self.settings.borrowers)
        self.begun: Permits = Permits(max(1, self.settings.connections // 4))
        """The permits of calls that are sent, and whose answers are not read yet."""
        self._connections = Living[Connection]()
        self._learner = Permits(1)
        """Its permit is out while a thread learns the slot map. Who waits for it shares what was learnt."""
        self._look_begun: _Look | None = None
        self.outages: Outages = Outages()  # the log of nodes that fail

    # ---- opening and closing

    def open(self, deadline: float = math.inf) -> None:
        """Connects, learns the slot map, and checks the servers' versions; also again after ``close()``.

        Raises Unavailable within ``connect_timeout`` when nothing listens; waits out a server that loads.
        ``deadline``: the end of both.
        """
        self._closed = None
        begun, tries = time.monotonic(), 0
        try:
            while (fault := drive(self._opening(), partial(self._answered, deadline))) is not None:
                tries += 1
                time.sleep(self._pause_s(fault, tries, begun, deadline))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes every connection, also those in use: their calls end at once."""
        self._closed = CLOSED
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()
        for connection in self._connections:
            if connection.open:
                connection.interrupt()

    def _forked(self) -> None:
        """Gives all descriptors back. Sends nothing: the connections are the parent's."""
        if self._closed is None:
            self._closed = FORKED
        connections, pools = list(self._connections), list(self._pools.values())
        self._set_up()
        for pool in pools:
            pool.forked()
        for connection in connections:
            connection.close()

    # ---- connections

    def pool(self, address: str) -> ConnectionPool:
        """The connection pool of a node."""
        pool = self._pools.get(address)
        if pool is None:
            made = ConnectionPool(address, bound=self.settings.connections, connect=self.connect)
            pool = self._pools.setdefault(address, made)
            self.check_open()  # after that: close() has emptied it, or closes this one, too
        return pool

    def connect(self, address: str, deadline: float, *, protocol: int | None = None) -> Connection | Fault:
        """A new connection, counted and closed with all the others."""
        self.check_open()
        if self._missing is not None:
            return self._missing
        timeout = max(0.001, min(self.settings.connect_timeout, deadline - time.monotonic()))
        connection = open_connection(
            self.settings, address, timeout=timeout, protocol=protocol, node_id=self.node_id(address)
        )
        if isinstance(connection, Connection):
            self._connections.add(connection)
            if self._closed is not None:
                connection.close()
                self.check_open()
        return connection

    def connections(self) -> dict[str, ConnectionCounts]:
        """The number of connections open to each node, and their bound."""
        total = Counter(connection.address for connection in self._connections if connection.open)
        shared = {address: pool.open for address, pool in list(self._pools.items())}
        bound = self.settings.connections
        return {
            address: ConnectionCounts(shared.get(address, 0), bound, max(0, total[address] - shared.get(address, 0)))
            for address in sorted({*total, *shared})
        }

    # ---- calls

    def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        """Carries one call out and decodes its answer. Raises a ServerFault when that can't be done in time.

        ``deadline``: the end of a ``timeout`` that began before, with the command that this call is a part of.
        """
        timeout_s = self.settings.timeout if timeout is None else timeout
        return self.carry(RetryingCall(call, timeout=timeout_s, deadline=deadline), self._trip)

    def carry(
        self,
        retrying: RetryingCall[T],
        trip: Callable[[RetryingCall[Any], str], Any],
        sleep: Callable[[float], object] = time.sleep,
        *,
        first: tuple[str, Any] | None = None,
    ) -> T:
        """Sends a call until it is answered or its time is over. ``trip`` makes one try at a node; ``first``: the node
        and the answer of a try that was made before.
        """
        while True:
            address: str | None
            if first is not None:
                (address, answer), first = first, None
            else:
                address = self.target(retrying)
                answer = unserved(retrying.request.slot) if address is None else trip(retrying, address)
            if not isinstance(answer, (ErrorReply, Fault)):
                return retrying.result(answer, address or "", self.journal)
            step = self.failed_with(answer, retrying, address)
            self.act(step, retrying.deadline)
            if step.backoff_s:
                sleep(step.backoff_s)

    def target(self, retrying: RetryingCall[Any]) -> str | None:
        """The node for the next try of a call; None if no node serves its slot. Raises EngineClosed unless open."""
        if self._closed is not None:
            raise EngineClosed(self._closed)
        if time.monotonic() >= self._look_at:
            self._look_again(retrying.deadline)
        slot = retrying.request.slot
        return retrying.address or (self.map.owners[slot] if slot >= 0 else self.map.node(slot))

    def _trip(self, retrying: RetryingCall[Any], address: str) -> Any:
        pool = self.pool(address)
        connection = pool.take(retrying.deadline)
        if isinstance(connection, Fault):
            return connection
        try:
            answer = connection.exchange(retrying.packed(), deadline=retrying.deadline, answers=retrying.answers)
        except BaseException:
            if retrying.call.finish_on_interrupt and retrying.answers == 1 and not connection.in_step:
                retrying.finished(connection.receive(FINISH_S))
            pool.abandon(connection)
            raise
        pool.give(connection)
        return answer

    # ---- the slot map

    def act(self, step: RetryStep, deadline: float = math.inf) -> None:
        """Does what a retry step says about the slot map, as far as there is time. The caller pauses."""
        # Another thread may learn it, and take its time.
        if step.refresh and time.monotonic() < deadline and (permit := self._learner.take_until(deadline)) is not None:
            try:
                if not self._just_learned:
                    self._learn(step.doubted, deadline)
            finally:
                self._learner.give(permit)
        self._correct(step.moved)

    def refresh(self, doubted: str = "") -> None:
        """Learns the slot map now, from the node ``doubted`` last. Raises a ServerFault if no node can tell."""
        self.check_open()
        permit = self._learner.take_until()
        assert permit is not None, "it has no deadline"
        try:
            fault = self._learn(doubted)
        finally:
            self._learner.give(permit)
        if fault is not None:
            raise self._error(fault, "the slot map was not learnt", ASK_TIMEOUT_S) from fault.cause

    def look(self) -> float:
        """Learns the slot map, if that is due. Returns the seconds until it is again."""
        permit = self._learner.take_until()
        try:
            if not self.look_due_in():
                with contextlib.suppress(EngineClosed):
                    self._learn("")
        finally:
            self._learner.give(permit)
        return self.look_due_in() or LOOK_EVERY_S

    def survey(self, deadline: float) -> Survey:
        """Asks all sentinels for the master, and other servers if they are masters, too."""
        return drive(survey(self.settings, self.map), partial(self._answered, deadline))

    def _look_again(self, deadline: float) -> None:
        """Has the slot map learnt, beside the calls: those wait for it that come after a pause, see ``routing``."""
        now, look = time.monotonic(), self._look_begun
        if look is None or look.over.is_set():
            look = _Look(now)
            try:
                self._look_begun = look
                begun(partial(self._look, look), "shardq-look")
            except BaseException:  # a signal's handler raised: nobody may be looking
                look.over.set()
                raise
        if wait_s := self._look_wait_s(look.began, now, deadline):
            look.over.wait(wait_s)

    def _look(self, look: _Look) -> None:
        try:
            self.look()
        finally:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            look.over.set()

    def on_new_map(self, follower: Callable[[], object]) -> Callable[[], None]:
        """Calls ``follower`` whenever a slot map was learnt. Returns a function that ends this.

        Followers are called by the thread that learnt it, while others wait for that: they must not block, nor call
        anything here.
        """
        self._followers.append(follower)

        def stop() -> None:
            with contextlib.suppress(ValueError):  # it has stopped, or the child of a fork has begun anew
                self._followers.remove(follower)

        return stop

    def _learn(self, doubted: str, deadline: float = math.inf) -> Fault | None:
        fault = drive(self._learning(doubted), partial(self._answered, deadline))
        if fault is None:
            for address in [*self._pools]:
                if address not in self.map.nodes and (pool := self._pools.pop(address, None)) is not None:
                    pool.close()
        return fault

    def _answered(self, deadline: float, ask: Question) -> Any:
        """Answers a question of ``routing``, on a connection of its own: the pool may be full or dead."""
        self.check_open()
        now = time.monotonic()
        if now >= deadline:
            return b"" if isinstance(ask, Probe) else OVERDUE
        left = deadline - now
        if isinstance(ask, Probe):
            return probe(ask.address, ask.data, timeout=min(LOOK_TIMEOUT_S, left))
        if isinstance(ask, Locate):
            try:
                return ask.answer() if left == math.inf else ask.begun().result(left)
            except TimeoutError as exc:
                if raised_by_handler(exc):
                    raise
                return unconnected(left)
        timeout = min(ask.within_s, self._share_s(left))
        connection = open_connection(
            self.settings, ask.address, timeout=timeout, sentinel=ask.sentinel, node_id=ask.node_id
        )
        if isinstance(connection, Fault):
            return connection
        try:
            until = min(deadline, time.monotonic() + ask.within_s)
            answer = connection.exchange(pack(*ask.words), deadline=until)
            if not ask.also or isinstance(answer, Fault):
                return answer
            return [answer, connection.exchange(pack(*ask.also), deadline=until)]
        finally:
            connection.close()


class _Look:
    """A look for the slot map by a thread of its own."""

    __slots__ = ("began", "over")

    def __init__(self, began: float) -> None:
        self.began = began
        self.over = Latch()
