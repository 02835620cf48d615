"""What ``@worker.on(batch=…)`` refuses, in words that say what to write."""

from __future__ import annotations

from typing import Any

import pytest

from shardq import Engine
from shardq.errors import BadInput


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "give an int from 1 to 1,000"),
        ({"batch": 1001}, "give an int from 1 to 1,000"),
        ({"batch": True}, "give an int from 1 to 1,000"),
        ({"batch": "many"}, "give an int from 1 to 1,000"),
        ({"batch": 2, "linger": 61}, "give seconds from 0 to 60"),
        ({"batch": 2, "linger": -1}, "give seconds from 0 to 60"),
        ({"batch": 2, "linger": "1s"}, "give seconds from 0 to 60"),
        ({"batch": 2, "concurrency": 0}, "give an int from 1 to 100,000"),
        ({"batch": 2, "isolate": 1}, "give True or False"),
        ({"linger": 0.2}, "give batch= too"),
        ({"isolate": False}, "give batch= too"),
        ({"concurrency": 2}, "the worker has concurrency="),
        ({"batch": 2, "batch_by": "key"}, "a key gives out one task at a time"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    worker: Any = Engine("redis://127.0.0.1:1").worker()
    with pytest.raises(BadInput, match=words):
        worker.on("events", **options)


def test_a_named_task_takes_no_batch() -> None:
    engine: Any = Engine("redis://127.0.0.1:1")
    for place in (engine.task, engine.worker().task):
        with pytest.raises(BadInput, match=r"handler of a topic takes batches: @worker.on"):
            place(batch=5)


def test_a_handler_of_batches_takes_the_batch_alone() -> None:
    worker: Any = Engine("redis://127.0.0.1:1").worker()
    with pytest.raises(BadInput, match=r"it is called with the batch alone, as def handle\(batch\)"):
        worker.on("events", batch=5)(lambda: None)
