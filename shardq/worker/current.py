"""The task that the code around a handler is at: ``shardq.current()``."""

from __future__ import annotations

from contextvars import ContextVar

from shardq.core.model.task import Delivery

CURRENT: ContextVar[Delivery] = ContextVar("shardq.current")
"""Set in the context of each call of a handler, its hooks included."""


def current() -> Delivery:
    """The delivery of the handler that calls this, itself or some functions further down. It goes along into tasks of
    asyncio and ``asyncio.to_thread``; threads that a handler starts otherwise have none.

    Raises LookupError outside of a handler.

    >>> @engine.task
    ... def send(order):
    ...     log.info("attempt %d of %s", shardq.current().attempt, shardq.current().id)
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise LookupError(
            "no task is handled here: shardq.current() is for a worker's handlers, and for what they call in their own "
            "thread or in tasks of asyncio that they start"
        ) from None
