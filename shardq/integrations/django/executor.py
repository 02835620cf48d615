"""Runs tasks in a worker: the handler of every topic of a backend.

An attempt goes from a claimed delivery to the end of the function: its result is stored as begun, the function is
called, and the result is stored as ended. Functions run on the worker's threads, coroutine functions on its event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django import db
from django.utils import timezone

from shardq.core.consumer.policy import Bury, Snooze, alone
from shardq.core.model.task import Delivery
from shardq.delivery.functions import ChoosingHandler
from shardq.delivery.handler import UnknownTask
from shardq.integrations.django import contract
from shardq.integrations.django.backend import ShardqBackend
from shardq.integrations.django.calls import Call, task_at, topics_of
from shardq.integrations.django.contract import TaskResultStatus, put
from shardq.worker import Worker

log: logging.Logger = logging.getLogger("shardq")


class UnstorableResult(Exception):
    """The function has returned what can't be stored as its result. It is not repeated: it would return it again."""


class TaskHandler(ChoosingHandler):
    """Runs the tasks of one backend."""

    def __init__(self, backend: ShardqBackend) -> None:
        self._backend = backend
        self._store = backend.store

    def __repr__(self) -> str:
        return f"<TaskHandler of {self._backend.alias!r}>"

    def has_coroutines(self) -> bool:
        return True

    def is_coroutine(self, delivery: Delivery) -> bool:
        try:
            return inspect.iscoroutinefunction(task_at(Call.read(delivery.payload, delivery.topic).path).func)
        except Exception:  # noqa: BLE001  a module that can't be imported is told of when the task is run
            return False

    def title(self, delivery: Delivery) -> str:
        payload = delivery.payload
        return str(payload.get("task"))[:200] if type(payload) is dict else ""

    def __call__(self, delivery: Delivery) -> Any:
        return self._run_coroutine(delivery) if self.is_coroutine(delivery) else self._run(delivery)

    # ---- an attempt

    def _run(self, delivery: Delivery) -> None:
        with _Connections():
            result = self._begun(delivery)
            if result is None:
                return
            try:
                value = _call(result, result.task.call)
            except BaseException as exc:
                self._failed(delivery, result, exc)
                raise
            self._returned(delivery, result, value)

    async def _run_coroutine(self, delivery: Delivery) -> None:
        # A thread for this task's own synchronous parts, as an ASGI request has one.
        async with ThreadSensitiveContext():
            result = await _in_thread(self._begun, delivery)
            if result is None:
                return
            try:
                value = await _call(result, result.task.acall)
            except asyncio.CancelledError:
                # Timed out, or given back at the worker's end; a row that says RUNNING is held against the engine.
                raise
            except BaseException as exc:
                await _in_thread(self._failed, delivery, result, exc)
                raise
            await _in_thread(self._returned, delivery, result, value)

    def _begun(self, delivery: Delivery) -> Any:
        """The result of the attempt that begins now. None: an earlier one has succeeded, and only its ack was lost."""
        try:
            result = Call.read(delivery.payload, delivery.topic).result(delivery.id, self._backend.alias)
        except contract.InvalidTask as exc:  # a newer worker may know it
            reason = f"{exc}; deploy it to the workers of this queue, or purge the task"
            raise UnknownTask(self.title(delivery), reason) from None
        now, me = timezone.now(), f"{socket.gethostname()[:48]}-{os.getpid()}"
        put(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now)
        put(result, worker_ids=[*["unknown"] * (delivery.attempt - 1), me])
        try:
            is_new = self._store is None or self._store.begin(result)
        except db.DataError as exc:
            raise Bury(f"the database refuses the arguments, which are part of the result: {exc}") from exc
        if not is_new:
            log.info("task %s has succeeded before: only its ack was lost", delivery.id)
            return None
        contract.task_started.send_robust(type(self._backend), task_result=result)
        return result

    def _returned(self, delivery: Delivery, result: Any, value: Any) -> None:
        try:
            value = contract.normalize_json(value)
        except (TypeError, ValueError) as exc:
            self._unstorable(delivery, result, f"the return value is no JSON: {exc}", exc)
        put(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
        if self._store is not None:
            try:
                self._store.end(result)
            except (db.OperationalError, db.InterfaceError):
                raise  # the task is tried again, as nobody would ever learn of its end
            except db.DatabaseError as exc:
                put(result, _return_value=None)
                self._unstorable(delivery, result, f"the database refuses the return value: {exc}", exc)
        contract.task_finished.send_robust(type(self._backend), task_result=result)

    def _unstorable(self, delivery: Delivery, result: Any, what: str, cause: Exception) -> None:
        error = UnstorableResult(what)
        error.__cause__ = cause
        buried = Bury(f"{type(error).__name__}: {what}")
        self._failed(delivery, result, error, last=True)
        raise buried from error

    def _failed(self, delivery: Delivery, result: Any, exc: BaseException, *, last: bool = False) -> None:
        """Stores that an attempt has failed, or was none. ``last``: there is no other, whatever the exception."""
        snoozed = isinstance(alone(exc), Snooze)
        most = self._backend.engine.topology.settings.max_attempts
        last = last or (delivery.attempt >= most and not snoozed) or isinstance(alone(exc), Bury)
        if snoozed:
            put(result, worker_ids=result.worker_ids[:-1])
        else:
            result.errors.append(contract.error_of(exc, __file__))
        if last:
            put(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        else:
            put(result, status=TaskResultStatus.READY)
        if self._store is not None:
            try:
                self._store.end(result)
            except db.DatabaseError as fault:
                # The engine knows of the attempt, and of a dead task the reason.
                log.warning("the result of task %s can't be stored: %s", delivery.id, fault)
        if last:
            contract.task_finished.send_robust(type(self._backend), task_result=result)


def worker_for(backend: ShardqBackend, queues: Sequence[str], **options: Any) -> Worker:
    """A worker of these queues, with the options of ``engine.worker``."""
    topics = topics_of(queues)
    worker = backend.engine.worker(topics, **options)
    handler = TaskHandler(backend)
    for topic in topics:
        worker.on(topic)(handler)
    return worker


def _call(result: Any, function: Callable[..., Any]) -> Any:
    context = (contract.TaskContext(task_result=result),) if result.task.takes_context else ()
    return function(*context, *result.args, **result.kwargs)


class _Connections:
    """Around a function, as around a request: database connections that are broken or too old are closed."""

    def __enter__(self) -> None:
        db.reset_queries()
        db.close_old_connections()

    def __exit__(self, *exc: object) -> None:
        db.close_old_connections()


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Calls it in the task's own thread, and leaves no connection there: many tasks wait at once."""

    def call() -> Any:
        try:
            return function(*args)
        finally:
            db.connections.close_all()

    return await sync_to_async(call)()
