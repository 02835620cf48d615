"""shardq: a sharded, high-throughput delay engine on Redis.

    >>> import shardq
    >>> engine = shardq.Engine("redis://127.0.0.1:6379/0", name="orders", shards=16)
    >>> id = engine.push({"order": 42}, delay=1800)

``Engine`` is the way in for threads, ``AsyncEngine`` for asyncio. The eight errors that programs catch are here, the
whole tree is in ``shardq.errors``.
"""

from shardq.core.lazy import TYPE_CHECKING, lazily

if TYPE_CHECKING:
    from shardq import codecs as codecs
    from shardq import http as http
    from shardq import metrics as metrics
    from shardq import otel as otel
    from shardq import outbox as outbox
    from shardq import testing as testing
    from shardq.core.consumer import AsyncConsumer, Consumer
    from shardq.core.fleet import Member
    from shardq.core.model.record import Codec
    from shardq.core.model.task import Attempt, Delivery, Outcome, Receipt, Task, TaskInfo
    from shardq.core.producer.buffer import Buffer, Pending
    from shardq.core.resharding import AsyncResize, Resize
    from shardq.delivery.batch import Batch
    from shardq.delivery.current import current
    from shardq.engine import AsyncEngine, Engine, Health, Stats
    from shardq.engine.webhooks import Webhooks
    from shardq.errors import (
        BadInput,
        Conflict,
        LeaseLost,
        PushError,
        ServerFault,
        ShardqError,
        Unanswered,
        Unavailable,
    )
    from shardq.features.history import History
    from shardq.features.listing import BulkResult, Forecast, TaskPage
    from shardq.features.schedules import Every, Schedule
    from shardq.features.webhooks.signing import webhook_secret
    from shardq.version import __version__
    from shardq.worker import AsyncWorker, Backoff, Bury, Hold, NamedTask, Retry, Snooze, Worker
else:
    # The command hears Ctrl-C from its first line on, and a program loads what it uses.
    _PLACES = {
        "shardq.core.consumer": "Consumer",
        "shardq.core.consumer.aio": "AsyncConsumer",
        "shardq.engine": "Engine Health Stats",
        "shardq.engine.aio": "AsyncEngine",
        "shardq.engine.webhooks": "Webhooks",
        "shardq.features.webhooks.signing": "webhook_secret",
        "shardq.errors": "BadInput Conflict LeaseLost PushError ServerFault ShardqError Unanswered Unavailable",
        "shardq.core.fleet.member": "Member",
        "shardq.features.history": "History",
        "shardq.features.listing": "BulkResult Forecast TaskPage",
        "shardq.core.model.record": "Codec",
        "shardq.core.model.task": "Attempt Delivery Outcome Receipt Task TaskInfo",
        "shardq.core.producer.buffer": "Buffer Pending",
        "shardq.core.resharding": "AsyncResize Resize",
        "shardq.features.schedules": "Every Schedule",
        "shardq.version": "__version__",
        "shardq.worker": "Backoff Bury Hold NamedTask Retry Snooze Worker",
        "shardq.worker.aio": "AsyncWorker",
        "shardq.delivery.batch": "Batch",
        "shardq.delivery.current": "current",
    }
    __getattr__, __dir__ = lazily(
        __name__,
        {name: place for place, names in _PLACES.items() for name in names.split()}
        | {
            "errors": "shardq.errors",
            "codecs": "shardq.codecs",
            "http": "shardq.http",
            "metrics": "shardq.metrics",
            "otel": "shardq.otel",
            "outbox": "shardq.outbox",
            "testing": "shardq.testing",
        },
    )

__all__ = [
    "__version__",
    # the engines and what they give out
    "AsyncEngine",
    "Engine",
    "AsyncConsumer",
    "Buffer",
    "Consumer",
    "AsyncResize",
    "Resize",
    "Pending",
    # workers
    "AsyncWorker",
    "Worker",
    "NamedTask",
    "Backoff",
    "Batch",
    "Bury",
    "Hold",
    "Retry",
    "Snooze",
    "current",
    # webhooks
    "Webhooks",
    "webhook_secret",
    # values
    "Attempt",
    "BulkResult",
    "Codec",
    "Delivery",
    "Every",
    "Forecast",
    "Health",
    "History",
    "Member",
    "Outcome",
    "Receipt",
    "Schedule",
    "Stats",
    "Task",
    "TaskInfo",
    "TaskPage",
    # the errors that programs catch; shardq.errors has them all
    "ShardqError",
    "BadInput",
    "ServerFault",
    "Unavailable",
    "Unanswered",
    "PushError",
    "Conflict",
    "LeaseLost",
]
