"""The backend of Django's task framework: it pushes tasks, and reads what became of them.

Three places know of a task: the caller's transaction until it is committed, Redis until the task is settled, and the
row of its result from its first attempt on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone

from shardq.core.model.checks import MAX_PAYLOAD
from shardq.core.model.task import Task as Pushed
from shardq.core.model.task import TaskInfo
from shardq.errors import BadInput, PayloadNotDecodable, Unanswered, Unavailable
from shardq.integrations.django.calls import Call, as_django, aware, payload_of
from shardq.integrations.django.contract import (
    BUILT_IN,
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskError,
    TaskResultDoesNotExist,
    TaskResultStatus,
    new_result,
    normalize_json,
    put,
    task_backends,
    task_enqueued,
)
from shardq.integrations.django.options import BackendOptions, engine_for
from shardq.integrations.django.queues import topic_of, wrong_queue
from shardq.outbox.rows import RowPacker

if TYPE_CHECKING:
    from shardq.engine import Engine
    from shardq.integrations.django.models import StoredResult
    from shardq.integrations.django.results import ResultStore

APP = "shardq.integrations.django"

ENDED = (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)


class TaskDied(Exception):
    """The error of a result whose task is dead without an exception of its function: its worker was lost too often, or
    it expired.
    """


class ShardqBackend(BaseTaskBackend):
    """``"shardq.integrations.django.ShardqBackend"`` in ``TASKS``.

    >>> TASKS = {
    ...     "default": {
    ...         "BACKEND": "shardq.integrations.django.ShardqBackend",
    ...         "QUEUES": ["default", "mail"],
    ...         "OPTIONS": {"url": "redis://127.0.0.1:6379/0", "name": "shop"},
    ...     }
    ... }
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.queue_names: tuple[Any, ...] = tuple(params.get("QUEUES", ["default"]))
        """In the order of the settings; empty: any."""
        # Not checked here: Django makes a backend when it imports a module with tasks; `check` tells what is wrong.
        if isinstance(self.options, Mapping) and "keep_results" in self.options:
            self.supports_get_result = self.options["keep_results"] is not None

    # ---- its parts, made when they are needed

    @cached_property
    def own(self) -> BackendOptions:
        """The checked options. Raises ImproperlyConfigured."""
        try:
            return BackendOptions.read(self.options)
        except BadInput as exc:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: {exc}") from exc

    @property
    def engine(self) -> Engine:
        """The engine, one for all threads of the process. See also ``shardq.integrations.django.engine``."""
        try:
            return engine_for(self.alias, self.own.engine)
        except BadInput as exc:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: {exc}") from exc

    @cached_property
    def store(self) -> ResultStore | None:
        """The rows of results, unless none are kept."""
        if self.own.keep_results is None:
            return None
        from shardq.integrations.django.results import ResultStore  # here: models need the registry of apps

        return ResultStore(self.own.database)

    @cached_property
    def _packer(self) -> RowPacker:
        return RowPacker(max_payload=self.own.engine.get("max_payload", MAX_PAYLOAD))

    # ---- enqueueing

    def validate_task(self, task: Any) -> None:
        """Raises InvalidTask for a task that this backend can't take."""
        if not isinstance(task, Task):
            framework = Task.__module__.removesuffix(".base")
            raise InvalidTask(f"{task!r:.200} is of another task framework; declare it with {framework}.task")
        super().validate_task(task)
        if (wrong := wrong_queue(task.queue_name)) is not None:
            raise InvalidTask(wrong)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Pushes a task, or has it pushed when the present transaction is committed; ``transactions`` says how."""
        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(dict(kwargs))
        pushed = Pushed(
            payload_of(task, args, kwargs, timezone.now()),
            topic=topic_of(task.queue_name, task.priority),
            at=None if task.run_after is None else aware(task.run_after),
        )
        how = self.own.transactions
        if how == "outbox":
            from shardq.integrations.django import outbox  # here: models need the registry of apps

            result = self._result(task, outbox.push(pushed, using=self.own.database), args, kwargs)
            self._enqueued(result)
        elif how == "commit" and transaction.get_connection(self.own.database).in_atomic_block:
            # Packed now: what can't be pushed raises here, and the result has its id.
            id = self._packer.pack(pushed)["id"]
            result = self._result(task, id, args, kwargs)
            pushed = msgspec.structs.replace(pushed, id=id.removeprefix(f"{pushed.topic}/"))
            transaction.on_commit(partial(self._push, result, pushed), using=self.own.database)
        else:
            receipt = self.engine.push(pushed.payload, topic=pushed.topic, at=pushed.at)
            result = self._result(task, receipt, args, kwargs)
            self._enqueued(result)
        return result

    def _push(self, result: Any, pushed: Pushed) -> None:
        self.engine.push(pushed.payload, topic=pushed.topic, at=pushed.at, id=pushed.id)
        self._enqueued(result)

    def _result(self, task: Any, id: str, args: Any, kwargs: Any) -> Any:
        return new_result(task, str(id), backend=self.alias, args=args, kwargs=kwargs)

    def _enqueued(self, result: Any) -> None:
        put(result, enqueued_at=timezone.now())
        task_enqueued.send(type(self), task_result=result)

    # ---- results

    def get_result(self, result_id: str) -> Any:
        """Returns what became of a task. Raises TaskResultDoesNotExist for one that is not known, or not any more, and
        for one that another program has pushed.

        A finished one is read from the database alone; for any other Redis is asked whether it is still to come. While
        that can't be reached, it raises Unavailable: the task may exist.
        """
        store = self.store
        if store is None:
            return super().get_result(result_id)  # which says that there are none
        row = store.find(result_id)
        if row is not None and row.status == TaskResultStatus.SUCCESSFUL:
            return self._finished(row)
        try:
            info = self.engine.get(result_id)
        except BadInput as exc:
            raise TaskResultDoesNotExist(f"{result_id!r:.400}: {exc}") from exc
        except PayloadNotDecodable as exc:
            raise TaskResultDoesNotExist(f"{result_id!r} is no task of Django: {exc}") from exc
        except (Unavailable, Unanswered) as exc:
            raise Unavailable(
                f"{result_id!r}: the database has no result of its success, and Redis can't tell whether it is still "
                f"to come: {exc}"
            ) from exc
        # After Redis: an attempt writes its row before its task is settled.
        row = store.find(result_id)
        if info is not None:
            try:
                return self._unfinished(info, row)
            except InvalidTask as exc:
                raise TaskResultDoesNotExist(f"{result_id!r} is no task of Django: {exc}") from exc
        if row is None:
            raise TaskResultDoesNotExist(
                f"{result_id!r}: there is no such task in {self.alias!r}, and no result of it; it may be older than "
                "keep_results allows, or its transaction is not committed yet"
            )
        if row.status not in ENDED:
            raise TaskResultDoesNotExist(f"{result_id!r}: the task was cancelled or purged before it was finished")
        return self._finished(row)

    def _finished(self, row: StoredResult) -> Any:
        call = Call(row.path, row.args, row.kwargs, row.queue_name, row.priority, row.run_after, row.enqueued_at)
        return self._read(call, row.pk, TaskResultStatus(row.status), row)

    def _unfinished(self, info: TaskInfo, row: StoredResult | None) -> Any:
        """The result of a task that the engine has: waiting, in work, or dead."""
        status = TaskResultStatus.READY
        if info.state == "dead":
            status = TaskResultStatus.FAILED
        elif info.state == "leased" and row is not None and row.status == TaskResultStatus.RUNNING:
            status = TaskResultStatus.RUNNING
        result = self._read(Call.read(info.payload, info.topic), info.id, status, row)
        if info.state == "dead" and (row is None or row.status != TaskResultStatus.FAILED):
            kind = f"{TaskDied.__module__}.{TaskDied.__qualname__}"
            result.errors.append(TaskError(exception_class_path=kind, traceback=info.reason or "the task is dead"))
            put(result, finished_at=info.died if info.died is None else as_django(info.died))
        return result

    def _read(self, call: Call, id: str, status: Any, row: StoredResult | None) -> Any:
        from shardq.integrations.django.results import errors_of  # here: models need the registry of apps

        fields: dict[str, Any] = {"status": status, "enqueued_at": call.enqueued_at}
        if row is not None:
            fields |= {
                "started_at": row.started_at,
                "last_attempted_at": row.last_attempted_at,
                "finished_at": row.finished_at if status in ENDED else None,
                "errors": errors_of(row),
                "worker_ids": list(row.worker_ids),
            }
        task = call.task(self.alias)
        result = new_result(task, id, backend=self.alias, args=call.args, kwargs=call.kwargs, **fields)
        if row is not None:
            put(result, _return_value=row.return_value)
        return result

    # ---- checks

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """The errors of the settings, for ``manage.py check``."""
        where = f"TASKS[{self.alias!r}]"
        for name in self.queue_names:
            if (wrong := wrong_queue(name)) is not None:
                yield checks.Error(f"{where}['QUEUES']: {wrong}", id="shardq.E001")
        try:
            own = BackendOptions.read(self.options)
            engine_for(self.alias, own.engine)
        except BadInput as exc:
            yield checks.Error(f"{where}['OPTIONS']: {exc}", id="shardq.E002")
            return
        if own.needs_tables and not apps.is_installed(APP):
            yield checks.Error(
                f"{where}: results and the outbox are tables of the app {APP}, which is not in INSTALLED_APPS",
                hint=f"Add {APP!r} to INSTALLED_APPS and run manage.py migrate, or set keep_results to None.",
                id="shardq.E003",
            )
        if not BUILT_IN and not apps.is_installed("django_tasks"):
            yield checks.Warning(
                f"{where}: 'django_tasks' is not in INSTALLED_APPS, so tasks that begin and end are not logged",
                hint="Add 'django_tasks' to INSTALLED_APPS.",
                id="shardq.W001",
            )


def engine(alias: str = "default") -> Engine:
    """Returns the engine of a backend in ``TASKS``: to look at it, or to push, pause and limit topics.

    >>> from shardq.integrations.django import engine
    >>> engine().stats().dead
    0
    """
    return backend_named(alias).engine


def backend_named(alias: str) -> ShardqBackend:
    """The backend of that alias. Raises InvalidTaskBackend where it is none of ours."""
    found = task_backends[alias] if alias in task_backends.settings else None
    if not isinstance(found, ShardqBackend):
        ours = [each for each in task_backends.settings if isinstance(task_backends[each], ShardqBackend)]
        has = f"those with it are {', '.join(ours)}" if ours else "none has it"
        raise InvalidTaskBackend(f"TASKS has no {alias!r} with BACKEND shardq.integrations.django.ShardqBackend; {has}")
    return found


def backends() -> list[ShardqBackend]:
    """All backends of ours in ``TASKS``."""
    return [each for each in task_backends.all() if isinstance(each, ShardqBackend)]
