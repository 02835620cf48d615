"""Workers: run handlers on deliveries, and make sure that every one of them is settled.

``handlers`` says which function takes what, ``named`` is functions that are pushed by name, ``functions`` says what a
callable of the user's takes. ``processor`` runs it all: a delivery loop, whose ends ``report`` counts. ``supervisor``
runs a processor in each of several processes. ``sync`` and ``aio`` are the workers that engines return.
"""

from typing import TYPE_CHECKING

from shardq.core.consumer.policy import Backoff, Bury, Hold, Retry, Snooze
from shardq.core.lazy import lazily
from shardq.worker.named import NamedTask, Pusher
from shardq.worker.sync import Worker

if TYPE_CHECKING:
    from shardq.worker.aio import AsyncWorker
else:
    __getattr__, __dir__ = lazily(__name__, {"AsyncWorker": "shardq.worker.aio"})

__all__ = ["AsyncWorker", "Backoff", "Bury", "Hold", "NamedTask", "Pusher", "Retry", "Snooze", "Worker"]
