"""The results of tasks, as rows of the table ``shardq_result``.

An attempt writes its row when it begins and when it ends, before its task is settled: so a task that is gone from Redis
has its last word in the row. What a row can't know, a worker that was killed or a task that was requeued, the engine
does; ``backend`` joins both.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

from django.db import IntegrityError, InterfaceError, OperationalError, connections
from django.utils import timezone

from shardq.integrations.django.contract import TaskError, TaskResultStatus, put
from shardq.integrations.django.models import StoredResult

_BATCH = 1000
"""The rows that are removed in one statement, so that no lock is held for long."""

_STATE = ("status", "started_at", "last_attempted_at", "finished_at", "worker_ids")


class ResultStore:
    """The rows in one database."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._rows = StoredResult.objects.using(database)

    def find(self, id: str) -> StoredResult | None:
        return self._rows.filter(pk=id).first()

    def _create(self, result: Any) -> None:
        self._rows.create(id=result.id, **_call_of(result), **_state_of(result))

    def begin(self, result: Any) -> bool:
        """Writes that an attempt has begun, and takes what earlier ones have left into the result. Returns False if one
        of them has succeeded: then only the ack of the task was lost.
        """
        if result.attempts == 1:
            with contextlib.suppress(IntegrityError):  # it was given back, or requeued, or lost with its ack
                self._create(result)
                return True
        earlier = self.find(result.id)
        if earlier is None:
            self._create(result)
            return True
        if earlier.status == TaskResultStatus.SUCCESSFUL:
            return False
        if result.attempts > 1:
            workers = [*earlier.worker_ids[: result.attempts - 1]]
            workers += ["unknown"] * (result.attempts - 1 - len(workers))
            put(result, started_at=earlier.started_at or result.started_at, errors=errors_of(earlier))
            put(result, worker_ids=[*workers, result.worker_ids[-1]])
        self._write(result)
        return True

    def end(self, result: Any) -> None:
        """Writes how an attempt has ended. A lost connection is made anew once, else the work would be done again.

        An attempt whose lease ran out may end after another has begun, or has succeeded. Then only its success counts.
        """
        succeeded = result.status == TaskResultStatus.SUCCESSFUL
        own = {} if succeeded else {"last_attempted_at": result.last_attempted_at}
        try:
            self._write(result, **own)
        except (OperationalError, InterfaceError):
            connections[self._database].close()
            self._write(result, **own)

    def _write(self, result: Any, **own: Any) -> None:
        """``own``: the fields by which the row is known as still the attempt's."""
        rows = self._rows.filter(pk=result.id)
        written = rows.filter(**own).exclude(status=TaskResultStatus.SUCCESSFUL).update(**_state_of(result))
        if not written and not rows.exists():  # it was removed meanwhile
            self._create(result)

    def prune(self, older: dt.timedelta, backend: str) -> int:
        """Removes the results of a backend's tasks that have ended longer ago than that, and of those whose last
        attempt began before and never ended. Returns how many.
        """
        until, removed = timezone.now() - older, 0
        rows = self._rows.filter(backend=backend)
        never_ended = rows.filter(finished_at__isnull=True, last_attempted_at__lt=until)
        for old in (rows.filter(finished_at__lt=until), never_ended):
            while ids := list(old.order_by().values_list("pk", flat=True)[:_BATCH]):
                removed += old.filter(pk__in=ids).delete()[0]
        return removed


def errors_of(row: StoredResult) -> list[Any]:
    return [TaskError(exception_class_path=path, traceback=text) for path, text in row.errors]


def _call_of(result: Any) -> dict[str, Any]:
    of_task = {name: getattr(result.task, name) for name in ("queue_name", "priority", "run_after")}
    own = {name: getattr(result, name) for name in ("args", "kwargs", "backend", "enqueued_at")}
    return {"path": result.task.module_path, **of_task, **own}


def _state_of(result: Any) -> dict[str, Any]:
    state = {name: getattr(result, name) for name in _STATE}
    errors = [[each.exception_class_path, each.traceback] for each in result.errors]
    return state | {"errors": errors, "return_value": result._return_value}
