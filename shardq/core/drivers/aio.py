"""The driver for asyncio: the twin of ``sync``, for the one loop it was opened in.

Pollers and subscribers are threads under both engines, so dedicated and pub/sub connections are ``sync``'s alone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.drivers.aioconnection import Answer, AsyncConnection, open_async_connection
from shardq.core.drivers.aiorouter import AsyncNodeRouter
from shardq.core.drivers.faults import OVERDUE, ErrorReply, Fault, unserved
from shardq.core.drivers.generators import adrive
from shardq.core.drivers.pipelines import DEPTH, LOOK_AHEAD, left_behind
from shardq.core.drivers.replicas import CONVERSATION_S, Confirmation
from shardq.core.drivers.retry import Deadline, RetryingCall, Spare
from shardq.core.drivers.router import ConnectionCounts
from shardq.core.drivers.routing import DriverBase
from shardq.core.drivers.settings import Settings
from shardq.errors import EngineClosed, ShardqError

K = TypeVar("K")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class AsyncBegunCall(Generic[T]):
    """A call that was sent and whose answer is read later, on a connection that has any number of calls."""

    retrying: RetryingCall[T]
    address: str
    connection: AsyncConnection
    answer: Answer


class AsyncDriver(DriverBase):
    """Calls, from any coroutine, to one server, the master of a service, or the masters of a cluster."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._router: AsyncNodeRouter = AsyncNodeRouter(settings)

    async def open(self, deadline: float = math.inf) -> None:
        """Connects, learns the slot map, and checks the servers' versions; also again after ``close()``.

        Raises Unavailable within ``connect_timeout`` when nothing listens; waits out a server that loads.
        ``deadline``: the end of both.
        """
        await self._router.open(deadline)

    async def close(self) -> None:
        """Closes every connection, also those in use: their calls end at once."""
        await self._router.close()

    def abandon(self) -> None:
        """Closes every connection of a loop that has ended."""
        self._router.abandon()

    # ---- calls

    # A deadline for the whole call, and not a cancellation: what was sent must be told from what was not.
    async def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        """Carries one call out and decodes its answer. Raises a ServerFault when that can't be done in time.

        ``deadline``: the end of a ``timeout`` that began before, with the command that this call is a part of.
        """
        self._router.check_open()
        timeout_s = self.settings.timeout if timeout is None else timeout
        return await self._carried(RetryingCall(call, timeout=timeout_s, deadline=deadline))

    def begin_all(self, calls: Sequence[tuple[Command[T], float]]) -> list[AsyncBegunCall[T] | None]:
        """Sends calls now, not at the end of this turn of the loop, for ``finish`` to wait for their answers, each
        before its deadline.

        None: this one was not sent; ``call`` does it, or says why it can't be done.
        """
        try:
            self._router.check_open()
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
        retrying = RetryingCall(call, timeout=self.settings.timeout, deadline=deadline)
        address = self._router.target(retrying)
        connection = None if address is None else self._router.node(address).ready()
        if address is None or connection is None:
            return None
        try:
            data = retrying.packed()
        except Exception:  # noqa: BLE001  whatever can't be packed
            return None
        return AsyncBegunCall(retrying, address, connection, connection.send(data, deadline=retrying.deadline))

    async def _carried(self, retrying: RetryingCall[T], begun: AsyncBegunCall[T] | None = None) -> T:
        router = self._router
        while True:
            address: str | None
            if begun is not None:
                address, answer, begun = begun.address, await begun.answer.received(), None
            else:
                address = router.target(retrying)
                answer = unserved(retrying.request.slot) if address is None else await self._trip(retrying, address)
            if not isinstance(answer, (ErrorReply, Fault)):
                return retrying.result(answer, address or "", router.journal)
            step = router.failed_with(answer, retrying, address)
            await router.act(step, retrying.deadline)
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
        hold back the calls of another. ``timeout`` is for all of them, and ends at the ``deadline`` if there is one.
        ``spare``: when to give up calls although they have time.
        """
        self._router.check_open()
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
            nodes = max(1, len(self._router.map.nodes))
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
                if not done:
                    rest = ((key, self.node_of(call.slot)) for key, call in source)
                    for key, node in (*under_way.values(), *_unsent(waiting), *rest):
                        yield key, left_behind(node)
                    return
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def confirm(self, seals: Sequence[Call[None]], deadline: float = math.inf) -> dict[int, str | None]:
        """Asks if replicas have all that was written until now. Returns answers by slot, see ``operation.Confirm``."""
        self._router.check_open()
        return await adrive(self._replica_tracker.confirm(seals, self.node_of), partial(self._confirmed, deadline))

    async def _confirmed(self, deadline: float, asked: Confirmation) -> str | Fault | None:
        within = min(self.settings.connect_timeout, deadline - time.monotonic())
        if within <= 0:
            return OVERDUE
        # one of its own: on a shared one all calls would wait
        connection = await open_async_connection(self.settings, asked.address, within=within)
        if isinstance(connection, Fault):
            return connection
        try:
            deadline = min(deadline, asyncio.get_running_loop().time() + CONVERSATION_S)
            return await connection.converse(asked.conversation, deadline=deadline)
        finally:
            await connection.close()

    async def _trip(self, retrying: RetryingCall[Any], address: str) -> Any:
        connection = await self._router.node(address).connection(retrying.deadline)
        if isinstance(connection, Fault):
            return connection
        return await connection.exchange(retrying.packed(), deadline=retrying.deadline, answers=retrying.answers)

    # ---- who serves what

    async def refresh(self, doubted: str = "") -> None:
        """Learns the slot map now, from the node ``doubted`` last. Raises a ServerFault if no node can tell."""
        await self._router.refresh(doubted)

    def connections(self) -> dict[str, ConnectionCounts]:
        """The number of connections open to each node, and their bound."""
        return self._router.connections()


def _unsent(waiting: Mapping[str, Iterable[tuple[K, Any]]]) -> Iterator[tuple[K, str]]:
    """The calls that are not sent, each with its node."""
    return ((key, node) for node, calls in waiting.items() for key, _ in calls)


def _outcome(task: asyncio.Task[T]) -> T | ShardqError:
    """The result of a call, or the error it may end in; a closed engine or any other exception is raised."""
    try:
        return task.result()
    except EngineClosed:
        raise
    except ShardqError as exc:
        return exc
