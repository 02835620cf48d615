"""The handler of an ``AsyncSink``: many messages at a time, in the sinks' event loop. Each is settled by its own
answer, and others take its place: a slow answer holds up its own task alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from shardq.core.consumer.policy import Bury, Retry, Snooze
from shardq.core.model.task import Delivery
from shardq.delivery.batch import Batch
from shardq.delivery.handler import NotBegun
from shardq.features.sinks.base import AsyncSink, Failed, Unsent, as_result
from shardq.features.sinks.gate import Gate
from shardq.features.sinks.handling import Decided, SinkHandler, Verdict, message_of, text_of

log: logging.Logger = logging.getLogger("shardq.sinks")


class _Lot:
    """The messages of one batch."""

    __slots__ = ("batch", "decided", "is_over", "left")

    def __init__(self, batch: Batch[Any]) -> None:
        self.batch, self.left, self.is_over = batch, len(batch), False
        self.decided = asyncio.get_running_loop().create_future()

    def decide(self, delivery: Delivery, decided: Decided) -> None:
        if self.is_over:
            return
        if decided is None:
            self.batch.ack(delivery)
        else:
            with self.batch.attempt(delivery):
                raise decided
        self.left -= 1
        if not self.left and not self.decided.done():
            self.decided.set_result(None)


class LoopedSink(SinkHandler):
    """One for asyncio: many messages at a time. All of it but ``interrupt`` runs in the sinks' loop."""

    is_coroutine = True

    def __init__(
        self, sink: AsyncSink, gate: Gate, *, loop: Callable[[], asyncio.AbstractEventLoop], **how: Any
    ) -> None:
        super().__init__(sink, gate, **how)
        self._sink = sink
        self._loop = loop
        self._linking = asyncio.Lock()
        """Held while it opens or closes."""
        self._waiting: deque[tuple[Delivery, _Lot]] = deque()
        self._at_work: set[asyncio.Task[None]] = set()
        self._workers = 0
        """Those of these that go on as long as any message waits."""
        self._under_way = 0
        self._undecided: list[tuple[Delivery, _Lot, int, Failed]] = []
        """Failures, and how many tasks the sink had taken before, that others under way will explain: they are the
        task's own if one of those is taken.
        """

    def _has_room(self) -> int:
        out = self.room.tasks
        return self._size - out if 2 * out <= self._size else 0

    def interrupt(self) -> None:
        self._loop().call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        while self._waiting:
            delivery, lot = self._waiting.popleft()
            lot.decide(delivery, NotBegun())
        for task in self._at_work:
            task.cancel()

    async def disconnect(self) -> None:
        """Disconnects, if it has nothing to send."""
        async with self._linking:
            if self.is_open and not self._under_way and not self._waiting:
                self.is_open = False
                try:
                    await self._sink.close()
                except Exception as exc:  # noqa: BLE001  it is lost already
                    log.debug("closing %s failed: %s", self.gate.route.shown, exc)

    async def run(self, batch: Batch[Any]) -> None:
        if self._is_ending or self._is_over() or self.gate.pause_s:
            raise NotBegun
        try:
            await self._opened()
        except Exception as exc:  # each client has errors of its own
            self.gate.is_down(text_of(exc))
            raise NotBegun from exc
        lot = _Lot(batch)
        self._waiting.extend([(delivery, lot) for delivery in batch])
        for _ in range(min(len(self._waiting), self._sink.connections - self._workers)):
            self._workers += 1
            task = asyncio.create_task(self._work(), name=f"the route of topic {self.gate.topic!r}")
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)
        try:
            await lot.decided
        finally:
            lot.is_over = True

    async def _opened(self) -> None:
        async with self._linking:
            if not self.is_open:
                sink = self._anew()
                assert isinstance(sink, AsyncSink), "it is made of the same URL"
                self._sink = sink
                await sink.open()
                self.is_open = True
                self.room.freed()

    async def _work(self) -> None:
        try:
            await self._send_all()
        finally:
            self._workers -= 1
        if self.gate.error:
            await self.disconnect()  # to connect anew for the next try

    async def _send_all(self) -> None:
        """Sends messages one by one, as long as any waits."""
        while self._waiting:
            delivery, lot = self._waiting.popleft()
            if lot.is_over:
                continue
            if self.gate.pause_s or self._is_ending or self._is_over():
                lot.decide(delivery, NotBegun())
                continue
            self._under_way += 1
            before, counts = self.gate.taken, self._counts_outages
            result: object = None
            try:
                result = await self._sink.send(message_of(delivery))
            except (Bury, Retry, Snooze) as exc:
                result = exc
            except asyncio.CancelledError:
                lot.decide(delivery, NotBegun())
                raise
            except BaseException as exc:  # noqa: BLE001  each client has errors of its own
                result, counts = Unsent(text_of(exc)), False
            finally:
                self._under_way -= 1
            self._note(delivery, lot, before, result, counts_outages=counts)
            self._explain()

    def _note(self, delivery: Delivery, lot: _Lot, before: int, answer: object, *, counts_outages: bool) -> None:
        """Decides about a task by its answer, and moves the circuit."""
        gate = self.gate
        result: Verdict = answer if isinstance(answer, Bury | Retry | Snooze) else as_result(self._sink, answer)
        if isinstance(result, Unsent):
            gate.is_down(result.reason, result.again_s)
            if counts_outages:
                result = Failed(result.reason, result.again_s)
        elif isinstance(result, Failed):
            if gate.taken == before and not counts_outages:
                self._undecided.append((delivery, lot, before, result))
                return
            if gate.taken == before and not self._under_way and not self._waiting:
                gate.is_down(result.reason, result.again_s)
            else:
                gate.works()
        else:
            gate.taken += 1
            gate.works()
        lot.decide(delivery, self._verdict(delivery, result))

    def _explain(self) -> None:
        """Decides about failures, as far as others have been taken since, or none is under way any more."""
        if not self._undecided:
            return
        undecided, self._undecided, gate = self._undecided, [], self.gate
        alone = [each for each in undecided if each[2] == gate.taken]
        own = [each for each in undecided if each[2] != gate.taken]
        if self._under_way or (self._waiting and not gate.pause_s):
            self._undecided, alone = alone, []
        if alone and not gate.pause_s and all(delivery.failures for delivery, *_ in alone):
            own, alone = own + alone, []
        if alone:
            gate.is_down(alone[0][3].reason)
        elif own:
            gate.works()
        for delivery, lot, _, result in own:
            lot.decide(delivery, self._verdict(delivery, result))
        for delivery, lot, _, result in alone:
            lot.decide(delivery, self._verdict(delivery, Unsent(result.reason)))
