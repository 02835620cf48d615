"""One delivery in a worker's hands, and what is to become of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from shardq.calls.consume import Ack, Back, Bury, Other, Retry
from shardq.model.checks import due_spec, reason_text
from shardq.model.task import Delivery
from shardq.worker.handlers import Handler

Stage = Literal["held", "running", "done"]
"""held: claimed and not begun. done: its verdict is given, by its handler or over its head, and counts once."""


@dataclass(eq=False, slots=True)
class Job:
    delivery: Delivery
    handler: Handler
    claimed_at: float = field(default_factory=time.monotonic)
    stage: Stage = "held"
    began_at: float = 0.0

    @property
    def name(self) -> str:
        """Its handler, in logs and errors."""
        return self.handler.name(self.delivery)

    @property
    def is_coroutine(self) -> bool:
        return self.handler.is_coroutine(self.delivery)

    @property
    def ack(self) -> Ack:
        """Also names the lease, for extending it."""
        return Ack(self.delivery.id, self.delivery.token)

    def back(self) -> Back:
        return Back(self.delivery.id, self.delivery.token)

    def bury(self, reason: str) -> Bury:
        return Bury(self.delivery.id, self.delivery.token, reason_text(reason))

    def retry(self, delay: float | None, reason: str) -> Retry:
        """None: by the handler's backoff, and never an error, whatever that does."""
        delivery, handler = self.delivery, self.handler
        delay_ms = handler.delay_ms(delivery.attempt) if delay is None else -due_spec(delay, None)
        return Retry(delivery.id, delivery.token, delay_ms, reason_text(reason), handler.max_attempts)


Verdict = Ack | Other
