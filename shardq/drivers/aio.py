"""The driver for asyncio: the twin of ``sync``, for the one loop it was opened in.

Pollers and subscribers are threads under both engines, so dedicated and pub/sub connections are ``sync``'s alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, TypeVar

from shardq.calls.request import Call, Command
from shardq.drivers.aioconnection import open_async_connection
from shardq.drivers.aiorouter import AsyncNodeRouter
from shardq.drivers.base import DriverBase
from shardq.drivers.begun import AsyncBegunCall
from shardq.drivers.faults import ErrorReply, Fault, unserved
from shardq.drivers.generators import adrive
from shardq.drivers.pipelines import DEPTH, LOOK_AHEAD
from shardq.drivers.replicas import CONVERSATION_S, Confirmation
from shardq.drivers.retry import RetryingCall
from shardq.drivers.router import ConnectionCounts
from shardq.drivers.settings import Settings
from shardq.errors import EngineClosed, ShardqError

K = TypeVar("K")
T = TypeVar("T")


class AsyncDriver(DriverBase):
    """Calls, from any coroutine, to one server, the master of a service, or the masters of a cluster."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._router: AsyncNodeRouter = AsyncNodeRouter(settings)

    async def open(self) -> None:
        """Connects, learns the slot map, and checks the servers' versions; also again after ``close()``.

        Raises Unavailable within ``connect_timeout`` when nothing listens; waits out a server that loads.
        """
        await self._router.open()

    async def close(self) -> None:
        """Closes every connection, also those in use: their calls end at once."""
        await self._router.close()

    def abandon(self) -> None:
        """Closes every connection of a loop that has ended."""
        self._router.abandon()

    # ---- calls

    # A deadline for the whole call, and not a cancellation: what was sent must be told from what was not.
    async def call(self, call: Command[T], timeout: float | None = None) -> T:
        """Carries one call out and decodes its answer. Raises a ServerFault when that can't be done in time."""
        self._router.check_open()
        timeout_s = self.settings.timeout if timeout is None else timeout
        return await self._carried(RetryingCall(call, now=time.monotonic(), timeout=timeout_s))

    def begin_all(self, calls: Sequence[Command[T]]) -> list[AsyncBegunCall[T] | None]:
        """Sends calls now, not at the end of this turn of the loop, for ``finish`` to wait for their answers.

        None: this one was not sent; ``call`` does it, or says why it can't be done.
        """
        try:
            self._router.check_open()
        except EngineClosed:
            return [None] * len(calls)
        begun = [self._begun(call) for call in calls]
        for connection in {each.connection for each in begun if each is not None}:
            connection.flush()
        return begun

    async def finish(self, begun: AsyncBegunCall[T]) -> T:
        """Waits for the answer of a call that was begun, and decodes it; carries the call out like any other if it met
        a fault.
        """
        return await self._carried(begun.retrying, begun)

    def _begun(self, call: Command[T]) -> AsyncBegunCall[T] | None:
        retrying = RetryingCall(call, now=time.monotonic(), timeout=self.settings.timeout)
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
                return router.result(retrying, answer, address or "")
            step = router.failed_with(answer, retrying, address)
            await router.act(step)
            if step.backoff_s:
                await asyncio.sleep(step.backoff_s)

    async def call_all(
        self,
        calls: Iterable[tuple[K, Command[T]]],
        *,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[K, T | ShardqError]]:
        """Carries many calls out, given with a key each. Yields keys with results or errors as they come, in no order.

        Calls are pulled one by one, and packed while the servers work on earlier ones. A slow node does not
        hold back the calls of another. ``timeout`` is for each call.
        """
        self._router.check_open()
        source = iter(calls)
        exhausted = False
        under_way: dict[asyncio.Task[T], tuple[K, str]] = {}
        load: Counter[str] = Counter()
        waiting: defaultdict[str, deque[tuple[K, Command[T]]]] = defaultdict(deque)

        def start(node: str) -> None:
            while waiting[node] and load[node] < DEPTH:
                key, call = waiting[node].popleft()
                load[node] += 1
                under_way[asyncio.create_task(self.call(call, timeout))] = key, node

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
                done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                outcomes = []
                for task in done:
                    key, node = under_way.pop(task)
                    load[node] -= 1
                    start(node)
                    outcomes.append((key, _outcome(task)))
                for outcome in outcomes:
                    yield outcome
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def confirm(self, seals: Sequence[Call[None]]) -> dict[int, str | None]:
        """Asks if replicas have all that was written until now. Returns answers by slot, see ``operation.Confirm``."""
        self._router.check_open()
        return await adrive(self._replica_tracker.confirm(seals, self.node_of), self._confirmed)

    async def _confirmed(self, asked: Confirmation) -> str | Fault | None:
        # one of its own: on a shared one everybody would wait
        connection = await open_async_connection(self.settings, asked.address, within=self.settings.connect_timeout)
        if isinstance(connection, Fault):
            return connection
        try:
            deadline = asyncio.get_running_loop().time() + CONVERSATION_S
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


def _outcome(task: asyncio.Task[T]) -> T | ShardqError:
    """The result of a call, or the error it may end in; a closed engine or any other exception is raised."""
    try:
        return task.result()
    except EngineClosed:
        raise
    except ShardqError as exc:
        return exc
