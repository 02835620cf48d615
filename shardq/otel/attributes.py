"""The attributes of spans: those of OpenTelemetry's conventions for messaging, and shardq's own, named ``shardq.…``. No
span is made here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from opentelemetry.util.types import AttributeValue

from shardq.core.model.ids import shown_topic
from shardq.core.model.task import Delivery, Receipt, Task

Attributes = Mapping[str, AttributeValue]


def of_operation(name: str, kind: str, engine: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "shardq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "shardq.engine": engine,
    }


def of_task(task: Task) -> dict[str, AttributeValue]:
    """The attributes of a task that is about to be pushed. Wrong options are left to the push, which says so."""
    found: dict[str, AttributeValue] = {}
    delay = task.delay.total_seconds() if isinstance(task.delay, dt.timedelta) else task.delay
    if isinstance(delay, int | float):
        found["shardq.delay"] = float(delay)
    at = task.at.isoformat() if isinstance(task.at, dt.datetime) else task.at
    if isinstance(at, str | int | float):
        found["shardq.at"] = at
    return found


def of_receipt(receipt: Receipt) -> Attributes:
    return {"messaging.message.id": str(receipt), "shardq.outcome": receipt.outcome}


def of_delivery(delivery: Delivery) -> Attributes:
    return {
        "messaging.destination.name": shown_topic(delivery.topic),
        "messaging.destination.partition.id": str(delivery.shard),
        "messaging.message.id": delivery.id,
        "shardq.attempt": delivery.attempt,
    }
