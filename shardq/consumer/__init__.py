"""Consumers: claim ready tasks under a lease, and settle them."""

from shardq.consumer.aio import AsyncConsumer
from shardq.consumer.sync import Consumer

__all__ = ["AsyncConsumer", "Consumer"]
