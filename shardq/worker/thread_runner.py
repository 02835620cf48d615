"""Runs handlers that are functions on threads: as many as are needed at once, at most ``concurrency``."""

from __future__ import annotations

import contextvars
import threading

from shardq.core import forks
from shardq.core.threads import ended
from shardq.worker.conclusions import conclude
from shardq.worker.hooks import Hooks
from shardq.worker.in_flight import InFlight
from shardq.worker.job import Job
from shardq.worker.kinds import check_result
from shardq.worker.strays import Strays


class ThreadRunner:
    """The threads of one worker. A function can't be stopped from outside: one that has timed out keeps its thread, and
    another thread takes its place.
    """

    def __init__(self, in_flight: InFlight, hooks: Hooks, strays: Strays, *, concurrency: int) -> None:
        self._in_flight = in_flight
        self._hooks = hooks
        self._strays = strays
        self._concurrency = concurrency
        self._threads: list[threading.Thread] = []

    def take(self, jobs: list[Job]) -> None:
        """Starts jobs, and makes more threads while none is idle. Called by one thread only."""
        short = self._in_flight.offer(jobs)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        busy = len(self._threads) - self._strays.functions
        for _ in range(min(short, self._concurrency - busy)):
            self._hire()

    def give_up(self, job: Job) -> None:
        """Lets the job's thread end when its function returns."""
        self._strays.add(job)

    def keep(self, job: Job) -> None:
        """Keeps the job's thread: its function returned just before it was given up."""
        self._strays.discard(job)

    def end(self) -> None:
        """Ends the threads, after ``in_flight`` has ended. Threads stuck in a function are left behind: its task is
        settled.
        """
        ended(self._threads)

    def _hire(self) -> None:
        thread = threading.Thread(target=self._run, name="shardq-handler", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self) -> None:
        strays = self._strays.jobs
        while job := self._in_flight.next():
            # What a handler sets in its context is not for the next one on this thread.
            contextvars.Context().run(self._do, job)
            if job in strays:
                self._strays.discard(job)
                return

    def _do(self, job: Job) -> None:
        failure: BaseException | None = None
        depth = forks.depth()
        self._hooks.before(job.delivery)
        try:
            if (result := job.handler.run(job.delivery)) is not None:
                check_result(result, job.name, "handler")
        except BaseException as exc:  # noqa: BLE001  whatever it was, SystemExit too: the task is settled
            failure = exc
        if forks.depth() != depth:
            forks.leave(failure)
        conclude(self._in_flight, self._hooks, job, failure)
