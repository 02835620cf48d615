"""Coroutines: handlers that run on an event loop, the caller's or one of our own in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections import deque

from shardq import forks
from shardq.threads import ended
from shardq.worker.hooks import Hooks
from shardq.worker.job import Job
from shardq.worker.kinds import check_result
from shardq.worker.logs import tell
from shardq.worker.table import Table
from shardq.worker.verdicts import conclude


class Strands:
    """At most ``concurrency`` at once. ``loop=None``: one of our own, made when the first coroutine comes."""

    def __init__(self, table: Table, hooks: Hooks, *, concurrency: int, loop: asyncio.AbstractEventLoop | None) -> None:
        self._table = table
        self._hooks = hooks
        self._concurrency = concurrency
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._ending = False
        self._inbox: deque[Job] = deque()
        self._tasks: dict[Job, asyncio.Task[None]] = {}

    def take(self, jobs: list[Job]) -> None:
        """From any one thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._own_loop, name="shardq-strands", daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(self._start, jobs)

    @property
    def healthy(self) -> bool:
        """False when a loop of our own has ended."""
        return self._thread is None or self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """True when every coroutine has ended, those that were cancelled too."""
        return not self._tasks

    def cancel(self, jobs: list[Job]) -> None:
        """Ends coroutines whose verdict is given already. From any thread."""
        if self._loop is not None:
            # a loop of the caller's may have been closed
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel, jobs)

    def end(self) -> None:
        """Ends our own loop; a thread that is stuck in a coroutine is left behind. The caller's loop goes on."""
        if self._thread is not None and self._loop is not None:
            self._ending = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)
            ended([self._thread])

    def _own_loop(self) -> None:
        loop = self._loop
        assert loop is not None, "made before its thread"
        asyncio.set_event_loop(loop)
        while not self._ending:
            try:
                loop.run_forever()
            except BaseException as exc:  # noqa: BLE001  SystemExit of a task that a handler made comes out here
                tell(logging.ERROR, "a task of a handler's own failed", exc=exc)
        with contextlib.suppress(BaseException):
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _start(self, jobs: list[Job]) -> None:
        self._inbox.extend(jobs)
        while self._inbox and self._inbox[0].stage == "done":
            # given back while every place was taken
            self._inbox.popleft()
        self._fill()

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while self._inbox and len(self._tasks) < self._concurrency:
            job = self._inbox.popleft()
            # in a context of its own, and an empty one, as functions have
            task = contextvars.Context().run(loop.create_task, self._do(job))
            self._tasks[job] = task
            task.add_done_callback(lambda _, job=job: self._ended(job))  # type: ignore[misc]  # a default

    def _ended(self, job: Job) -> None:
        del self._tasks[job]
        self._fill()

    def _cancel(self, jobs: list[Job]) -> None:
        for job in jobs:
            if task := self._tasks.get(job):
                task.cancel()

    async def _do(self, job: Job) -> None:
        if not self._table.begin(job):
            return
        failure: BaseException | None = None
        depth = forks.depth()
        self._hooks.before(job.delivery)
        try:
            if (result := await job.handler.run(job.delivery)) is not None:
                check_result(result, job.name, "handler")
        except BaseException as exc:  # noqa: BLE001  whatever it was, a cancellation too: the task is settled
            failure = exc
        if forks.depth() != depth:
            forks.leave(failure)
        if job.stage == "done" and isinstance(failure, asyncio.CancelledError):
            return  # by us: why was said when its verdict was given
        conclude(self._table, self._hooks, job, failure)
