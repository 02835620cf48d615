"""The driver for asyncio: the twin of ``sync``, for the one loop it was opened in.

Pollers and subscribers are threads under both engines, so dedicated and pub/sub connections are ``sync``'s alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

from shardq.core import forks
from shardq.core.calls.request import Call, Command, pack
from shardq.core.drivers.aioconnection import Answer, AsyncConnection, AsyncConnectionPool, open_async_connection, probe
from shardq.core.drivers.conversations import adrive
from shardq.core.drivers.election import Survey
from shardq.core.drivers.faults import OVERDUE, ErrorReply, Fault, unconnected, unserved
from shardq.core.drivers.pipelines import DEPTH, LOOK_AHEAD, left_behind
from shardq.core.drivers.questions import ASK_TIMEOUT_S, LOOK_TIMEOUT_S, Locate, Probe, Question
from shardq.core.drivers.replica_tracker import CONVERSATION_S, Confirmation
from shardq.core.drivers.retry import Deadline, RetryingCall, RetryStep, Spare
from shardq.core.drivers.routing import CLOSED, FORKED, LOOK_EVERY_S, ConnectionCounts, DriverBase
from shardq.core.drivers.sentinels import survey
from shardq.core.drivers.settings import Settings
from shardq.errors import EngineClosed, ShardqError

K = TypeVar("K")
T = TypeVar("T")

OTHER_LOOP = (
    "this engine is open in another event loop: make one for this loop, or close() it there before you open() it here"
)
LOOP_ENDED = "the event loop that this engine was opened in has ended: open() it again in this one"


@dataclass(slots=True, eq=False)
class AsyncBegunCall(Generic[T]):
    """A call that was sent and whose answer is read later, on a connection that has any number of calls."""

    retrying: RetryingCall[T]
    address: str
    connection: AsyncConnection
    answer: Answer


class AsyncDriver(DriverBase):
    """Calls, from any coroutine, to one server, the master of a service, or the masters of a cluster: in one loop."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop that it is open in
        self._pools: dict[str, AsyncConnectionPool] = {}
        self._learner = asyncio.Lock()
        """Held while the slot map is learnt: a task that waits for it shares what was learnt."""
        self._looking: asyncio.Task[None] | None = None
        self._look_began = 0.0
        forks.watch(self, AsyncDriver._forked)

    # ---- opening and closing

    async def open(self, deadline: float = math.inf) -> None:
        """Connects, learns the slot map, and checks the servers' versions; also again after ``close()``.

        Raises Unavailable within ``connect_timeout`` when nothing listens; waits out a server that loads.
        ``deadline``: the end of both.
        """
        self._closed, self._loop = None, asyncio.get_running_loop()
        begun, tries = time.monotonic(), 0
        try:
            while (fault := await adrive(self._opening(), partial(self._answered, deadline))) is not None:
                tries += 1
                await asyncio.sleep(self._pause_s(fault, tries, begun, deadline))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes every connection, also those in use: their calls end at once. Cancelled, it closes all the same."""
        self._closed = CLOSED
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.abort()
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
        ending = [pool.close() for pool in pools.values()]
        await asyncio.shield(asyncio.gather(*ending, *([asyncio.wait((looking,))] if looking is not None else [])))

    def _forked(self) -> None:
        """Gives all descriptors back. Sends nothing: the connections are the parent's."""
        self.abandon(FORKED)

    def abandon(self, why: str = LOOP_ENDED) -> None:
        """Closes every connection of a loop that has ended."""
        if self._closed is None:
            self._closed = why
        self._looking = None
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.abandon()

    # ---- connections

    def check_open(self) -> None:
        super().check_open()
        if self._loop is not asyncio.get_running_loop():
            raise EngineClosed(LOOP_ENDED if self._loop is None or self._loop.is_closed() else OTHER_LOOP)

    def target(self, retrying: RetryingCall[Any]) -> str | None:
        """The node for the next try of a call; None if no node serves its slot."""
        return retrying.address or self.map.node(retrying.request.slot)

    def pool(self, address: str) -> AsyncConnectionPool:
        """The connections to a node."""
        pool = self._pools.get(address)
        if pool is None:
            self.check_open()
            bound = self.settings.connections
            pool = self._pools[address] = AsyncConnectionPool(address, bound=bound, connect=self._connect)
        return pool

    async def _connect(self, address: str) -> AsyncConnection | Fault:
        return self._missing or await open_async_connection(
            self.settings, address, within=self.settings.connect_timeout, node_id=self.node_id(address)
        )

    def connections(self) -> dict[str, ConnectionCounts]:
        """The number of connections open to each node, and their bound."""
        return {address: ConnectionCounts(pool.open, pool.bound, 0) for address, pool in sorted(self._pools.items())}

    # ---- calls

    # A deadline for the whole call, and not a cancellation: what was sent must be told from what was not.
    async def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        """Carries one call out and decodes its answer. Raises a ServerFault when that can't be done in time.

        ``deadline``: the end of a ``timeout`` that began before, with the command that this call is a part of.
        """
        self.check_open()
        timeout_s = self.settings.timeout if timeout is None else timeout
        return await self._carried(RetryingCall(call, timeout=timeout_s, deadline=deadline))

    def begin_all(self, calls: Sequence[tuple[Command[T], float]]) -> list[AsyncBegunCall[T] | None]:
        """Sends calls now, not at the end of this turn of the loop, for ``finish`` to wait for their answers, each
        before its deadline.

        None: this one was not sent; ``call`` does it, or says why it can't be done.
        """
        try:
            self.check_open()
        except EngineClosed:
            return [None] * len(calls)
        begun = [self._begun(call, deadline) for call, deadline in calls]
        for connection in {each.connection for each in begun if each is not None}:
            connection.flush()
        return begun

    async def finish(self, begun: AsyncBegunCall[T]) -> T:
        """Waits for the answer of a call that was begun, and decodes it; carries the call out like any other if it met
        a fault.
        """
        return await self._carried(begun.retrying, begun)

    def _begun(self, call: Command[T], deadline: float) -> AsyncBegunCall[T] | None:
        now = time.monotonic()
        if now >= self._look_at and self._look_again(now, deadline):
            return None
        retrying = RetryingCall(call, timeout=self.settings.timeout, deadline=deadline)
        address = self.target(retrying)
        connection = None if address is None else self.pool(address).ready()
        if address is None or connection is None:
            return None
        try:
            data = retrying.packed()
        except Exception:  # noqa: BLE001  whatever can't be packed
            return None
        return AsyncBegunCall(retrying, address, connection, connection.send(data, deadline=retrying.deadline))

    async def _carried(self, retrying: RetryingCall[T], begun: AsyncBegunCall[T] | None = None) -> T:
        while True:
            address: str | None
            if begun is not None:
                address, answer, begun = begun.address, await begun.answer.received(), None
            else:
                now = time.monotonic()
                if now >= self._look_at and (wait_s := self._look_again(now, retrying.deadline)):
                    assert self._looking is not None, "it was begun"
                    await asyncio.wait((self._looking,), timeout=wait_s)
                address = self.target(retrying)
                answer = unserved(retrying.request.slot) if address is None else await self._trip(retrying, address)
            if not isinstance(answer, (ErrorReply, Fault)):
                return retrying.result(answer, address or "", self.journal)
            step = self.failed_with(answer, retrying, address)
            await self.act(step, retrying.deadline)
            if step.backoff_s:
                await asyncio.sleep(step.backoff_s)

    async def call_all(
        self,
        calls: Iterable[tuple[K, Command[T]]],
        *,
        timeout: float | None = None,
        deadline: Deadline[K] = None,
        spare: Spare | None = None,
    ) -> AsyncIterator[tuple[K, T | ShardqError]]:
        """Carries many calls out, given with a key each. Yields keys with results or errors as they come, in no order.

        Calls are pulled one by one, and packed while the servers work on earlier ones. A slow node does not
        hold back the calls of another. An iterator that has none left is asked again after an answer. ``timeout`` is
        for all of them, and ends at the ``deadline`` if there is one. ``spare``: when to give up calls although they
        have time.
        """
        self.check_open()
        if deadline is None:
            deadline = time.monotonic() + (self.settings.timeout if timeout is None else timeout)
        spare = self.spare(spare)
        source = iter(calls)
        exhausted = False
        given_up_at: float | None = None if spare is None or spare.worth is not None else spare.until
        under_way: dict[asyncio.Task[T], tuple[K, str]] = {}
        load: Counter[str] = Counter()
        waiting: defaultdict[str, deque[tuple[K, Command[T]]]] = defaultdict(deque)

        def start(node: str) -> None:
            while waiting[node] and load[node] < DEPTH:
                key, call = waiting[node].popleft()
                load[node] += 1
                until = deadline(key) if callable(deadline) else deadline
                under_way[asyncio.create_task(self.call(call, timeout, until))] = key, node

        def hungry() -> bool:
            nodes = max(1, len(self.map.nodes))
            busy = sum(count >= DEPTH for count in load.values())
            return busy < nodes and sum(map(len, waiting.values())) < LOOK_AHEAD * nodes

        try:
            while True:
                while not exhausted and hungry():
                    pulled = next(source, None)
                    if pulled is None:
                        exhausted = True
                        break
                    node = self.node_of(pulled[1].slot)
                    waiting[node].append(pulled)
                    start(node)
                    await asyncio.sleep(0)  # it leaves before the next one is packed
                if not under_way:
                    return
                left = None if given_up_at is None else max(0.0, given_up_at - time.monotonic())
                done, _ = await asyncio.wait(under_way, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                outcomes = []
                for task in done:
                    key, node = under_way.pop(task)
                    load[node] -= 1
                    start(node)
                    outcome = _outcome(task)
                    outcomes.append((key, outcome))
                    if spare is not None and given_up_at is None and spare.is_worth(outcome):
                        given_up_at = spare.until
                for each in outcomes:
                    yield each
                exhausted = False  # one may have waited for an answer
                if not done:
                    unsent = chain(*waiting.values(), source)
                    rest = ((key, self.node_of(call.slot)) for key, call in unsent)
                    for key, node in chain(under_way.values(), rest):
                        yield key, left_behind(node)
                    return
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def confirm(
        self, seals: Sequence[Call[None]], deadline: float = math.inf, *, disk: bool = False
    ) -> dict[int, str | None]:
        """Asks if replicas have all that was written until now. Returns answers by slot, see ``operation.Confirm``."""
        self.check_open()
        return await adrive(
            self._replica_tracker.confirm(seals, self.node_of, disk=disk), partial(self._confirmed, deadline)
        )

    async def _confirmed(self, deadline: float, asked: Sequence[Confirmation]) -> list[str | Fault | None]:
        told = await asyncio.gather(*(self._talk(deadline, each) for each in asked), return_exceptions=True)
        for each in told:
            if isinstance(each, BaseException):
                raise each
        return [each for each in told if not isinstance(each, BaseException)]

    async def _talk(self, deadline: float, asked: Confirmation) -> str | Fault | None:
        within = min(self.settings.connect_timeout, deadline - time.monotonic())
        if within <= 0:
            return OVERDUE
        # one of its own: on a shared one all calls would wait
        connection = await open_async_connection(
            self.settings, asked.address, within=within, node_id=self.node_id(asked.address)
        )
        if isinstance(connection, Fault):
            return connection
        try:
            deadline = min(deadline, asyncio.get_running_loop().time() + CONVERSATION_S)
            return await connection.converse(asked.conversation, deadline=deadline)
        finally:
            await connection.close()

    async def _trip(self, retrying: RetryingCall[Any], address: str) -> Any:
        connection = await self.pool(address).connection(retrying.deadline)
        if isinstance(connection, Fault):
            return connection
        return await connection.exchange(retrying.packed(), deadline=retrying.deadline, answers=retrying.answers)

    # ---- the slot map

    async def act(self, step: RetryStep, deadline: float = math.inf) -> None:
        """Does what a retry step says about the slot map, as far as there is time. The caller pauses."""
        if step.refresh and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                # Another task may learn it, and take its time.
                async with asyncio.timeout_at(None if deadline == math.inf else deadline):
                    await self._learner.acquire()
                try:
                    if not self._just_learned:
                        await self._learn(step.doubted, deadline)
                finally:
                    self._learner.release()
        self._correct(step.moved)

    async def refresh(self, doubted: str = "") -> None:
        """Learns the slot map now, from the node ``doubted`` last. Raises a ServerFault if no node can tell."""
        self.check_open()
        async with self._learner:
            fault = await self._learn(doubted)
        if fault is not None:
            raise self._error(fault, "the slot map was not learnt", ASK_TIMEOUT_S) from fault.cause

    async def survey(self, deadline: float) -> Survey:
        """Asks all sentinels for the master, and other servers if they are masters, too."""
        return await adrive(survey(self.settings, self.map), partial(self._answered, deadline))

    def _look_again(self, now: float, deadline: float) -> float:
        """Has the slot map learnt, beside the calls. Returns for how long a call that comes after a pause waits for
        it.
        """
        if self._looking is None or self._looking.done():
            self._looking, self._look_began = asyncio.create_task(self._look()), now
        return self._look_wait_s(self._look_began, now, deadline)

    async def _look(self) -> None:
        try:
            with contextlib.suppress(EngineClosed):
                async with self._learner:
                    if not self.look_due_in():
                        await self._learn("")
        finally:
            self._look_at = time.monotonic() + LOOK_EVERY_S

    async def _learn(self, doubted: str, deadline: float = math.inf) -> Fault | None:
        fault = await adrive(self._learning(doubted), partial(self._answered, deadline))
        if fault is None:
            for address in self._pools.keys() - set(self.map.nodes):
                await self._pools.pop(address).close()
        return fault

    async def _answered(self, deadline: float, ask: Question) -> Any:
        """Answers a question of ``routing``, on a connection of its own: open ones may be dead."""
        self.check_open()
        now = time.monotonic()
        if now >= deadline:
            return b"" if isinstance(ask, Probe) else OVERDUE
        left = deadline - now
        if isinstance(ask, Probe):
            return await probe(ask.address, ask.data, within=min(LOOK_TIMEOUT_S, left))
        if isinstance(ask, Locate):
            located = asyncio.wrap_future(ask.begun())
            done, _ = await asyncio.wait((located,), timeout=None if left == math.inf else left)
            return located.result() if done else unconnected(left)
        within = min(ask.within_s, self._share_s(left))
        connection = await open_async_connection(
            self.settings, ask.address, within=within, sentinel=ask.sentinel, node_id=ask.node_id
        )
        if isinstance(connection, Fault):
            return connection
        try:
            until = min(deadline, time.monotonic() + ask.within_s)
            answer = await connection.exchange(pack(*ask.words), deadline=until)
            if not ask.also or isinstance(answer, Fault):
                return answer
            return [answer, await connection.exchange(pack(*ask.also), deadline=until)]
        finally:
            await connection.close()


def _outcome(task: asyncio.Task[T]) -> T | ShardqError:
    """The result of a call, or the error it may end in; a closed engine or any other exception is raised."""
    try:
        return task.result()
    except EngineClosed:
        raise
    except ShardqError as exc:
        return exc
