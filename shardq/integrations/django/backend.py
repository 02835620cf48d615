"""The backend of Django's task framework: it pushes tasks, and reads what became of them.

Three places know of a task: the caller's transaction until it is committed, Redis until the task is settled, and the
row of its result from its first attempt on.
"""

from __future__ import annotations

import datetime as dt
import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import transaction
from django.utils import timezone

from shardq import Engine
from shardq.core.model.checks import MAX_PAYLOAD, duration_ms
from shardq.core.model.task import Task, TaskInfo
from shardq.engine.around import EngineBase
from shardq.errors import BadInput, InvalidOption, PayloadNotDecodable, Unanswered, Unavailable
from shardq.integrations.django import contract
from shardq.integrations.django.calls import Call, as_django, aware, payload_of, topic_of, wrong_queue
from shardq.integrations.django.contract import TaskResultDoesNotExist, TaskResultStatus, new_result, put
from shardq.outbox.rows import RowPacker

if TYPE_CHECKING:
    from shardq.integrations.django.models import StoredResult
    from shardq.integrations.django.results import ResultStore

APP = "shardq.integrations.django"

Transactions = Literal["commit", "outbox", "ignore"]

OF_ENGINE = tuple(name for name in inspect.signature(EngineBase.__init__).parameters if name not in ("self", "codec"))
"""The options of ``shardq.Engine`` that the backend takes. Payloads are JSON, as the framework's arguments are."""

OWN = ("transactions", "keep_results", "database")

ENDED: tuple[Any, ...] = (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)


@dataclass(frozen=True, slots=True)
class BackendOptions:
    engine: Mapping[str, Any]
    transactions: Transactions
    keep_results: dt.timedelta | None
    """How long results are kept after the end of their task; None: there are none."""
    database: str
    """The alias of the database whose transactions count, and that has the outbox and the results."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> BackendOptions:
        """Raises BadInput for the first thing that is wrong. The values of the engine's options it checks itself."""
        if not isinstance(given, Mapping):
            raise InvalidOption(f"OPTIONS can't be {given!r}; give a dict")
        for name in given:
            if name not in (*OF_ENGINE, *OWN):
                raise InvalidOption(_unknown(name))
        engine = {name: value for name, value in given.items() if name in OF_ENGINE}
        transactions = given.get("transactions", "commit")
        if transactions not in get_args(Transactions):
            allowed = ", ".join(map(repr, get_args(Transactions)))
            raise InvalidOption(f"transactions={transactions!r} is not possible; use one of {allowed}")
        database = given.get("database", "default")
        if database not in settings.DATABASES:
            known = ", ".join(map(repr, settings.DATABASES))
            raise InvalidOption(f"database={database!r} is not an alias in DATABASES; use one of {known}")
        keep = given.get("keep_results", dt.timedelta(days=7))
        try:
            kept = None if keep is None else dt.timedelta(milliseconds=duration_ms(keep, "keep_results"))
        except BadInput as exc:
            raise InvalidOption(f"{exc}; None keeps no results") from None
        return cls(engine, transactions, kept, database)


def _unknown(name: object) -> str:
    if name == "codec":
        return "there is no option 'codec': payloads are JSON, as the arguments of tasks are; leave it out"
    close = difflib.get_close_matches(str(name), (*OF_ENGINE, *OWN), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join((*OWN, *OF_ENGINE))}"
    return f"there is no option {name!r}; {hint}"


class TaskDied(Exception):
    """A task is dead without an exception of its function: its worker was lost too often, or it expired."""


class ShardqBackend(contract.BaseTaskBackend):
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
    supports_get_result: bool = True
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
        if not isinstance(task, contract.Task):
            framework = contract.Task.__module__.removesuffix(".base")
            raise contract.InvalidTask(f"{task!r:.200} is of another task framework; declare it with {framework}.task")
        super().validate_task(task)
        if (wrong := wrong_queue(task.queue_name)) is not None:
            raise contract.InvalidTask(wrong)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Pushes a task, or has it pushed when the present transaction is committed; ``transactions`` says how."""
        self.validate_task(task)
        args, kwargs = contract.normalize_json(list(args)), contract.normalize_json(dict(kwargs))
        pushed = Task(
            payload_of(task, args, kwargs, timezone.now()),
            topic=topic_of(task.queue_name, task.priority),
            at=None if task.run_after is None else aware(task.run_after),
        )
        result = new_result(task, "", backend=self.alias, args=args, kwargs=kwargs)
        how = self.own.transactions
        if how == "outbox":
            from shardq.integrations.django import outbox  # here: models need the registry of apps

            put(result, id=outbox.push(pushed, using=self.own.database))
            self._enqueued(result)
        elif how == "commit" and transaction.get_connection(self.own.database).in_atomic_block:
            # Packed now: what can't be pushed raises here, and the result has its id.
            put(result, id=self._packer.pack(pushed)["id"])
            pushed = msgspec.structs.replace(pushed, id=result.id.removeprefix(f"{pushed.topic}/"))
            transaction.on_commit(partial(self._push, result, pushed), using=self.own.database)
        else:
            self._push(result, pushed)
        return result

    def _push(self, result: Any, pushed: Task) -> None:
        put(result, id=str(self.engine.push(pushed.payload, topic=pushed.topic, at=pushed.at, id=pushed.id)))
        self._enqueued(result)

    def _enqueued(self, result: Any) -> None:
        put(result, enqueued_at=timezone.now())
        contract.task_enqueued.send(type(self), task_result=result)

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
            raise TaskResultDoesNotExist(f"{result_id!r} is not a task of Django: {exc}") from exc
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
            except contract.InvalidTask as exc:
                raise TaskResultDoesNotExist(f"{result_id!r} is not a task of Django: {exc}") from exc
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
            told = info.reason or "the task is dead"
            result.errors.append(contract.TaskError(exception_class_path=kind, traceback=told))
            put(result, finished_at=info.died if info.died is None else as_django(info.died))
        return result

    def _read(self, call: Call, id: str, status: Any, row: StoredResult | None) -> Any:
        from shardq.integrations.django.results import errors_of  # here: models need the registry of apps

        result = call.result(id, self.alias, status=status)
        if row is not None:
            put(result, started_at=row.started_at, last_attempted_at=row.last_attempted_at, errors=errors_of(row))
            put(result, worker_ids=list(row.worker_ids), _return_value=row.return_value)
            put(result, finished_at=row.finished_at if status in ENDED else None)
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
        if (own.keep_results is not None or own.transactions == "outbox") and not apps.is_installed(APP):
            yield checks.Error(
                f"{where}: results and the outbox are tables of the app {APP}, which is not in INSTALLED_APPS",
                hint=f"Add {APP!r} to INSTALLED_APPS and run manage.py migrate, or set keep_results to None.",
                id="shardq.E003",
            )
        if not contract.BUILT_IN and not apps.is_installed("django_tasks"):
            yield checks.Warning(
                f"{where}: 'django_tasks' is not in INSTALLED_APPS, so tasks that begin and end are not logged",
                hint="Add 'django_tasks' to INSTALLED_APPS.",
                id="shardq.W001",
            )


_engines: dict[tuple[str, str], Engine] = {}
"""The engines by alias and options: settings that a test overrides have an engine of their own."""


def engine_for(alias: str, options: Mapping[str, Any]) -> Engine:
    """The one engine of these options in this process. It opens nothing. Raises BadInput for wrong options."""
    key = alias, repr(sorted(options.items()))
    found = _engines.get(key)
    # Two threads may both make one; the first that is put in is the one.
    return found if found is not None else _engines.setdefault(key, Engine(**options))


def close_engines() -> None:
    """Closes the engines of this process. Their next use makes new ones."""
    while _engines:
        _, found = _engines.popitem()
        found.close()


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting == "TASKS":
        close_engines()


setting_changed.connect(_settings_changed)


def engine(alias: str = "default") -> Engine:
    """Returns the engine of a backend in ``TASKS``: to look at it, or to push, pause and limit topics.

    >>> from shardq.integrations.django import engine
    >>> engine().stats().dead
    0
    """
    return backend_named(alias).engine


def backend_named(alias: str) -> ShardqBackend:
    """The backend of that alias. Raises InvalidTaskBackend where it is none of ours."""
    found = contract.task_backends[alias] if alias in contract.task_backends.settings else None
    if not isinstance(found, ShardqBackend):
        ours = ", ".join(each.alias for each in backends())
        has = f"those with it are {ours}" if ours else "none has it"
        raise contract.InvalidTaskBackend(
            f"TASKS has no {alias!r} with BACKEND shardq.integrations.django.ShardqBackend; {has}"
        )
    return found


def backends() -> list[ShardqBackend]:
    """All backends of ours in ``TASKS``."""
    return [each for each in contract.task_backends.all() if isinstance(each, ShardqBackend)]
