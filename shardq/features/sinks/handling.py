"""The handlers of routes: what a delivery loop calls with the tasks of a forwarded topic. They open and close the sink,
hand it messages, and make verdicts of what it answers. ``blocking`` and ``looped`` are the two kinds.

Between the sink's answer and the ack lies the only moment in which a crash sends a task twice; its id goes along, so
that the other side can tell.

A task's own failure is told from the sink's by other tasks: where the sink took one meanwhile, the failure is an
attempt, retried with backoff and dead in the end. From then on a failure of this task is its own also when it is sent
alone: a task that has failures has failed beside others before, as outages count none.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardq.core.consumer.policy import Bury, Retry, Snooze, reason_of
from shardq.core.model.task import Delivery
from shardq.delivery.batch import Batch
from shardq.delivery.handler import Batching, Handler, NotBegun
from shardq.delivery.prefetch import BatchRoom
from shardq.errors import ShardqError
from shardq.features.sinks.base import ASKED_S, Failed, Message, Refused, Result, Sent, SinkBase, Unsent
from shardq.features.sinks.gate import TRIED, Gate

log: logging.Logger = logging.getLogger("shardq.sinks")

NOT_TRIED = Unsent("the sink was not asked")
"""The result of a task that is given back, and says nothing of the sink."""

Verdict = Result | Bury | Retry | Snooze
"""What is decided of a task. ``Hold`` is a ``Snooze``."""

Decided = BaseException | None
"""The same for the delivery loop: what a handler raised, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteHandler(Handler):
    """The handler of a route, as the delivery loop has it."""

    gate: Gate


class SinkHandler(ABC):
    """The sink of one route."""

    is_coroutine: bool
    is_open: bool = False

    def __init__(
        self, sink: SinkBase, gate: Gate, *, anew: Callable[[], SinkBase], is_over: Callable[[], bool]
    ) -> None:
        """``anew``: the sink, made anew if a secret of it has changed. ``is_over``: True if its topic is paused, or has
        another route.
        """
        self.gate = gate
        self._anew, self._is_over = anew, is_over
        self._is_ending = False
        self.room: BatchRoom = BatchRoom(1)
        self.handler: RouteHandler = RouteHandler(
            gate=gate,
            topic=gate.topic,
            run=self.run,
            is_coroutine=lambda _: self.is_coroutine,
            has_coroutines=lambda: self.is_coroutine,
            name=lambda _: f"the route of topic {gate.topic!r}",
            max_attempts=sink.max_attempts,
            backoff=sink.backoff,
            batching=Batching(size=sink.batch, isolate=False, shrinks=False),
            is_silent=True,
        )
        self._counts_outages = sink.counts_outages
        self._size = sink.batch

    @abstractmethod
    def run(self, batch: Batch[Any]) -> Any:
        """Handles a batch: what the delivery loop calls."""

    def wanted(self) -> int:
        """How many tasks are to be claimed now."""
        if self.gate.pause_s or self._is_ending or self._is_stray:
            return 0
        if self.gate.is_trying or not self.is_open:
            return 0 if self.room.tasks else min(TRIED, self._size)
        return self._has_room()

    @property
    def _is_stray(self) -> bool:
        """True if a call runs whose tasks were ended over its head."""
        return False

    @abstractmethod
    def _has_room(self) -> int:
        """The same while the sink is open, and works."""

    @property
    def is_idle(self) -> bool:
        """True if it is connected, and has nothing to do."""
        return self.is_open and not self.room.tasks

    def end(self) -> None:
        """Begins with nothing more."""
        self._is_ending = True

    @abstractmethod
    def interrupt(self) -> None:
        """Ends what takes too long; the tasks are sent again by another process."""

    # ---- verdicts

    def _verdict(self, delivery: Delivery, result: Verdict) -> Decided:
        """What becomes of a task. Counts it."""
        counts = self.gate.counts
        match result:
            case Sent():
                counts["sent"] += 1
                return None
            case Unsent():
                counts["failed"] += result is not NOT_TRIED
                return NotBegun(result.reason)
            case Refused(reason):
                log.warning("task %s is refused by %s, and buried: %s", delivery.id, self.gate.route.shown, reason)
                result = Bury(reason)
            case Failed(reason, again_s):
                backoff_s = self.handler.delay_ms(delivery.attempt) / 1000
                result = Retry(max(backoff_s, min(again_s, ASKED_S)), reason)
            case _:
                pass
        counts["failed"] += 1
        counts["buried"] += isinstance(result, Bury)
        return result


def message_of(delivery: Delivery) -> Message:
    return Message(
        id=delivery.id,
        topic=delivery.topic,
        payload=delivery.payload.data,
        codec=delivery.payload.codec,
        headers=delivery.headers,
        attempt=delivery.attempt,
        failures=delivery.failures,
        url=delivery.url,
    )


def text_of(exc: BaseException) -> str:
    """One line; errors of clients may have no text."""
    text = str(exc).strip()
    if isinstance(exc, ShardqError):
        return text
    return f"{type(exc).__name__}: {text}" if text else reason_of(exc).splitlines()[-1]
