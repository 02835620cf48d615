"""An ``AsyncSink`` as a sender has it: its coroutines run in the loop of ``own_loop``, so many at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from shardq.core.consumer.policy import Bury, Retry, Snooze
from shardq.features.sinks.base import AsyncSink, Failed, Message, Result, Unsent
from shardq.features.sinks.own_loop import LOOP

Verdict = Result | Bury | Retry | Snooze
"""What becomes of a message. ``Hold`` is a ``Snooze``."""

_ENDS = Unsent("the process ends")


class InLoop:
    """Answers with futures."""

    def __init__(self, sink: AsyncSink) -> None:
        self.sink = sink
        self.loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[Message, Future[Verdict]]] = deque()
        self._at_work: set[asyncio.Task[None]] = set()
        self._down: Result | None = None
        """Why the rest of what waits is not sent."""

    def open(self) -> None:
        self.loop = LOOP.enter()
        # a task of the loop before may still be about to end
        self._waiting, self._at_work = deque(), set()
        try:
            self._run(self.sink.open()).result()
        except BaseException:
            self._left()
            raise

    def send(self, batch: Sequence[Message]) -> Sequence[Future[Verdict]]:
        assert self.loop is not None, "it is open"
        answers = [Future[Verdict]() for _ in batch]
        self.loop.call_soon_threadsafe(self._take, list(zip(batch, answers, strict=True)))
        return answers

    def interrupt(self) -> None:
        if (loop := self.loop) is not None:
            with contextlib.suppress(RuntimeError):  # it is closed meanwhile
                loop.call_soon_threadsafe(self._end)

    def close(self) -> None:
        if self.loop is not None:
            loop, self.loop = self.loop, None
            asyncio.run_coroutine_threadsafe(self.sink.close(), loop).add_done_callback(lambda _: LOOP.leave(loop))

    def _run(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        assert self.loop is not None, "it is open"
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def _left(self) -> None:
        loop, self.loop = self.loop, None
        if loop is not None:
            LOOP.leave(loop)

    # ---- in the loop

    def _take(self, messages: Sequence[tuple[Message, Future[Verdict]]]) -> None:
        self._down = None
        waiting, at_work = self._waiting, self._at_work
        waiting.extend(messages)
        for _ in range(min(len(waiting), self.sink.connections - len(at_work))):
            task = asyncio.ensure_future(self._work(waiting))
            at_work.add(task)
            task.add_done_callback(at_work.discard)

    async def _work(self, waiting: deque[tuple[Message, Future[Verdict]]]) -> None:
        while waiting:
            message, answer = waiting.popleft()
            try:
                answer.set_result(await self._sent(message))
            except asyncio.CancelledError:
                answer.set_result(_ENDS)
            except BaseException as exc:  # noqa: BLE001  the sender tells it
                answer.set_exception(exc)

    def _end(self) -> None:
        self._down = _ENDS
        while self._waiting:
            self._waiting.popleft()[1].set_result(_ENDS)
        for task in self._at_work:
            task.cancel()

    async def _sent(self, message: Message) -> Verdict:
        if self._down is not None:
            return self._down
        counts = self.sink.counts_outages
        try:
            result: Verdict = await self.sink.send(message)
        except (Bury, Retry, Snooze) as exc:
            return exc
        except Exception as exc:  # noqa: BLE001  each client has errors of its own
            result, counts = Unsent(str(exc) or type(exc).__name__), False
        if isinstance(result, Unsent):
            self._down = self._down or result
            if counts:
                return Failed(result.reason, result.again_s)
        return result
