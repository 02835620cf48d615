"""The task that the code around a handler is at: ``shardq.current()``."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from shardq.core.model.task import Delivery

CURRENT: ContextVar[Delivery[Any] | Sequence[Delivery[Any]]] = ContextVar("shardq.current")
"""Set in the context of each call of a handler, its hooks included: the delivery, or the batch."""


def current() -> Delivery[Any]:
    """The delivery of the handler that calls this, itself or some functions further down. In a handler of batches it is
    the batch, and in its ``with batch.attempt(delivery)`` that delivery. It goes along into tasks of asyncio and
    ``asyncio.to_thread``; threads that a handler starts otherwise have none. To type checkers it is a delivery always:
    a handler of batches has its batch as its argument.

    Raises LookupError outside of a handler.

    >>> @engine.task
    ... def send(order):
    ...     log.info("attempt %d of %s", shardq.current().attempt, shardq.current().id)
    """
    try:
        return CURRENT.get()  # type: ignore[return-value]  # as said above
    except LookupError:
        raise LookupError(
            "no task is handled here: shardq.current() is for a worker's handlers, and for what they call in their own "
            "thread or in tasks of asyncio that they start"
        ) from None
