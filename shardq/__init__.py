"""shardq: a sharded, high-throughput delay engine on Redis.

    >>> import shardq
    >>> engine = shardq.Engine("redis://127.0.0.1:6379/0", name="orders", shards=16)
    >>> id = engine.push({"order": 42}, delay=1800)

``Engine`` is the way in for threads, ``AsyncEngine`` for asyncio. The tree of errors is in ``shardq.errors``.
"""

from shardq.core.lazy import TYPE_CHECKING, lazily

if TYPE_CHECKING:
    from shardq import dashboard as dashboard
    from shardq import metrics as metrics
    from shardq import otel as otel
    from shardq import outbox as outbox
    from shardq import testing as testing
    from shardq.core.consumer import AsyncConsumer, Consumer
    from shardq.core.fleet import Member
    from shardq.core.layout.topology import EngineSettings
    from shardq.core.model.record import Codec
    from shardq.core.model.task import CancelledTag, Delivery, Outcome, Receipt, Task, TaskInfo
    from shardq.core.producer.buffer import Buffer, Pending
    from shardq.core.resharding import AsyncGrowth, Growth, Preview, Progress
    from shardq.engine import AsyncEngine, Engine, Health, Rates, ShardStats, Stats, TopicStats
    from shardq.engine.changes import Change
    from shardq.errors import (
        AccessDenied,
        BadInput,
        ChangeUnderWay,
        Conflict,
        DedupWithoutId,
        DelayAndAt,
        DurabilityUnavailable,
        EmbeddedFault,
        EngineClosed,
        InvalidDelay,
        InvalidId,
        InvalidName,
        InvalidOption,
        InvalidShardCount,
        InvalidTopic,
        InvalidUrl,
        LeaseLost,
        MissingPackage,
        NaiveDatetime,
        NotReplicated,
        OutOfMemory,
        PayloadNotDecodable,
        PayloadNotEncodable,
        PayloadTooLarge,
        PushError,
        ReadOnly,
        ServerFault,
        ServerTooOld,
        SettleError,
        ShardqError,
        SpoolFault,
        SpoolFull,
        TooManyOpenFiles,
        Unanswered,
        Unavailable,
        UnknownSchedule,
    )
    from shardq.features.history import History, HistoryPoint
    from shardq.features.listing import BulkResult, Forecast, TaskPage
    from shardq.features.replay.stats import ReplayStats
    from shardq.features.schedules import Every, Schedule
    from shardq.features.spool.stats import SpoolStats
    from shardq.version import __version__
    from shardq.worker import AsyncWorker, Backoff, Bury, NamedTask, Pusher, Retry, Snooze, Worker
else:
    # The command hears Ctrl-C from its first line on, and a program loads what it uses.
    _PLACES = {
        "shardq.core.consumer": "Consumer",
        "shardq.core.consumer.aio": "AsyncConsumer",
        "shardq.engine": "Engine Health Rates ShardStats Stats TopicStats",
        "shardq.engine.aio": "AsyncEngine",
        "shardq.engine.changes": "Change",
        "shardq.errors": (
            "AccessDenied BadInput ChangeUnderWay Conflict DedupWithoutId DelayAndAt DurabilityUnavailable "
            "EmbeddedFault EngineClosed InvalidDelay InvalidId InvalidName InvalidOption InvalidShardCount "
            "InvalidTopic InvalidUrl LeaseLost MissingPackage NaiveDatetime NotReplicated OutOfMemory "
            "PayloadNotDecodable PayloadNotEncodable PayloadTooLarge PushError ReadOnly ServerFault ServerTooOld "
            "SettleError ShardqError SpoolFault SpoolFull TooManyOpenFiles Unanswered Unavailable UnknownSchedule"
        ),
        "shardq.core.fleet.member": "Member",
        "shardq.core.layout.topology": "EngineSettings",
        "shardq.features.history": "History HistoryPoint",
        "shardq.features.listing": "BulkResult Forecast TaskPage",
        "shardq.features.replay.stats": "ReplayStats",
        "shardq.core.resharding": "AsyncGrowth Growth Preview Progress",
        "shardq.core.model.record": "Codec",
        "shardq.core.model.task": "CancelledTag Delivery Outcome Receipt Task TaskInfo",
        "shardq.core.producer.buffer": "Buffer Pending",
        "shardq.features.schedules": "Every Schedule",
        "shardq.features.spool.stats": "SpoolStats",
        "shardq.version": "__version__",
        "shardq.worker": "Backoff Bury NamedTask Pusher Retry Snooze Worker",
        "shardq.worker.aio": "AsyncWorker",
    }
    __getattr__, __dir__ = lazily(
        __name__,
        {name: place for place, names in _PLACES.items() for name in names.split()}
        | {
            "errors": "shardq.errors",
            "dashboard": "shardq.dashboard",
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
    "AsyncGrowth",
    "Growth",
    "Pending",
    # workers
    "AsyncWorker",
    "Worker",
    "NamedTask",
    "Pusher",
    "Backoff",
    "Bury",
    "Retry",
    "Snooze",
    # values
    "BulkResult",
    "CancelledTag",
    "Change",
    "Codec",
    "Delivery",
    "EngineSettings",
    "Every",
    "Forecast",
    "Health",
    "History",
    "HistoryPoint",
    "Member",
    "Outcome",
    "Preview",
    "Progress",
    "Rates",
    "Receipt",
    "ReplayStats",
    "Schedule",
    "ShardStats",
    "SpoolStats",
    "Stats",
    "Task",
    "TaskInfo",
    "TopicStats",
    "TaskPage",
    # errors, as in the tree of shardq.errors
    "ShardqError",
    "BadInput",
    "InvalidDelay",
    "NaiveDatetime",
    "DelayAndAt",
    "DedupWithoutId",
    "InvalidName",
    "InvalidTopic",
    "InvalidId",
    "InvalidOption",
    "PayloadTooLarge",
    "PayloadNotEncodable",
    "InvalidShardCount",
    "InvalidUrl",
    "ServerFault",
    "ServerTooOld",
    "Unavailable",
    "TooManyOpenFiles",
    "Unanswered",
    "OutOfMemory",
    "ReadOnly",
    "AccessDenied",
    "DurabilityUnavailable",
    "SettleError",
    "PushError",
    "NotReplicated",
    "Conflict",
    "UnknownSchedule",
    "ChangeUnderWay",
    "LeaseLost",
    "SpoolFault",
    "SpoolFull",
    "PayloadNotDecodable",
    "MissingPackage",
    "EmbeddedFault",
    "EngineClosed",
]
