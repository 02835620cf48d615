"""Consumers: claim ready tasks under a lease, and settle them.

Their commands are in ``consuming_aio``, from which ``consuming_sync`` is generated. ``aio`` and ``sync`` are the
consumers that engines return, with what differs: what becomes of a request when its caller is interrupted.
"""

from typing import TYPE_CHECKING

from shardq.core.consumer.sync import Consumer
from shardq.core.lazy import lazily

if TYPE_CHECKING:
    from shardq.core.consumer.aio import AsyncConsumer
else:
    __getattr__, __dir__ = lazily(__name__, {"AsyncConsumer": "shardq.core.consumer.aio"})

__all__ = ["AsyncConsumer", "Consumer"]
