"""The seam for traces: what an engine asks of whoever traces it. ``shardq.otel`` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from shardq.core.model.task import Receipt, Task
from shardq.worker.handlers import Handler


class PushSpan(Protocol):
    """The time of one push."""

    tasks: Sequence[Task]
    """The tasks with the headers by which their handlers find it."""

    def pushed(self, receipts: list[Receipt]) -> list[Receipt]:
        """Notes what became of the tasks. Returns the same."""


class Tracing(Protocol):
    """Traces the pushes of an engine, and the handlers of its workers."""

    def push(self, task: Task) -> AbstractContextManager[PushSpan]: ...

    def push_many(self, tasks: Sequence[Task]) -> AbstractContextManager[PushSpan]: ...

    def stream(self, tasks: Iterator[Task]) -> Iterator[Task]:
        """The tasks of a stream with their headers."""

    def create(self, task: Task) -> Task:
        """A task that is sent later with its headers."""

    def handler(self, handler: Handler) -> Handler:
        """A handler that does the same, and is traced."""
