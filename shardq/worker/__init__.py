"""Workers: run handlers on deliveries, and make sure that every one of them is settled.

``handlers`` says which function takes what, ``named`` which functions are pushed by name, ``kinds`` what a callable is.
``crew`` is the running whole: it claims, hands out, extends and settles. ``hands`` are its threads for functions,
``strands`` its coroutines, ``strays`` what runs on after its task was ended; ``fleet`` runs it in several processes.
``sync`` and ``aio`` are what the engines give out.
"""

from typing import TYPE_CHECKING

from shardq.lazy import lazily
from shardq.worker.named import AsyncNamedTask, NamedTask
from shardq.worker.policy import Backoff, Bury, Retry
from shardq.worker.sync import Worker

if TYPE_CHECKING:
    from shardq.worker.aio import AsyncWorker
else:
    __getattr__, __dir__ = lazily(__name__, {"AsyncWorker": "shardq.worker.aio"})

__all__ = ["AsyncNamedTask", "AsyncWorker", "Backoff", "Bury", "NamedTask", "Retry", "Worker"]
