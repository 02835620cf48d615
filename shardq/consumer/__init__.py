"""Consumers: claim ready tasks under a lease, and settle them."""

from typing import TYPE_CHECKING

from shardq.consumer.sync import Consumer
from shardq.lazy import lazily

if TYPE_CHECKING:
    from shardq.consumer.aio import AsyncConsumer
else:
    __getattr__, __dir__ = lazily(__name__, {"AsyncConsumer": "shardq.consumer.aio"})

__all__ = ["AsyncConsumer", "Consumer"]
