"""Handles the tasks of an engine in a thread, whatever its servers do meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shardq import Engine, ShardqError


def handle(engine: Engine, handled: set[str], is_over: Callable[[], bool], **options: Any) -> None:
    """Claims and acks until it is over, and notes the ids. ``options``: those of the consumer."""
    consumer = engine.consumer(**options)
    while not is_over():
        try:
            deliveries = consumer.claim(500, wait=0.1)
            handled.update(each.id for each in deliveries)
            consumer.ack(deliveries)
        except ShardqError:
            time.sleep(0.05)
