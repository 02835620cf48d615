"""Commands on all tasks that match, in the background: counted first, confirmed, and stopped between two pages.

A job is of this process: when that ends, a job under way ends after its page, and what it did stays done.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from shardq.dashboard.asking import Asker
from shardq.engine.sync import Engine
from shardq.errors import BadInput, ShardqError
from shardq.features.listing.bulk import BulkResult, Verb

Phase = Literal["counting", "counted", "working", "done", "stopped", "failed"]

AT_ONCE = 4
"""Jobs under way. Each holds one of the threads that ask the servers."""

KEPT = 50
"""Jobs that are remembered; the oldest ones that have ended are forgotten."""


class Busy(BadInput):
    """Too many jobs are under way."""


class _Stopped(Exception):
    """Somebody asked for the end, between two pages."""


@dataclass(slots=True, eq=False)
class Job:
    """One command on many tasks."""

    verb: Verb
    what: str
    """The tasks, in words."""
    arguments: dict[str, Any]
    """The arguments of the engine's command."""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    phase: Phase = "counting"
    counted: int = 0
    is_counted: bool = False
    """False if there may be more: they are being counted, or that was stopped."""
    result: BulkResult = field(default_factory=lambda: BulkResult(matched=0, done=0))
    """How far the command came."""
    error: str = ""
    _stopping: bool = False

    @property
    def is_under_way(self) -> bool:
        return self.phase in ("counting", "working")

    @property
    def share(self) -> int:
        """Percent of what was counted; tasks that were pushed meanwhile may make it more."""
        return min(100, 100 * self.result.matched // self.counted) if self.counted else 100

    def stop(self) -> None:
        """Ends it after the page under way, if it is under way."""
        self._stopping = self.is_under_way

    async def count(self, ask: Asker) -> None:
        """Counts the tasks, to be shown before the question. That can be stopped: millions take minutes."""
        result = await self._walk(ask, self._note_counted, dry_run=True)
        if result is not None:
            self.counted, self.is_counted = result.matched, True
        if self.phase in ("counting", "stopped"):
            self.phase, self._stopping = "counted", False

    async def work(self, ask: Asker) -> None:
        """Gives each task the command."""
        result = await self._walk(ask, self._note_done, dry_run=False)
        if result is not None:
            self.result, self.phase = result, "done"

    async def _walk(self, ask: Asker, note: Callable[[BulkResult], None], *, dry_run: bool) -> BulkResult | None:
        """Returns the result, or None if it did not come to the end."""

        def command(engine: Engine) -> BulkResult:
            call: Callable[..., BulkResult] = getattr(engine, f"{self.verb}_all")
            return call(**self.arguments, dry_run=dry_run, progress=note)

        try:
            result = await ask(command)
        except _Stopped:
            self.phase = "stopped"
        except ShardqError as exc:
            self.phase, self.error = "failed", "\n".join((str(exc), *getattr(exc, "__notes__", ())))
        except BaseException:
            # the loop ends, or there is a fault of ours
            self._stopping = True
            self.phase = "stopped"
            raise
        else:
            return result
        return None

    def _note_counted(self, so_far: BulkResult) -> None:
        self.counted = so_far.matched
        self._check()

    def _note_done(self, so_far: BulkResult) -> None:
        self.result = so_far
        self._check()

    def _check(self) -> None:
        if self._stopping:
            raise _Stopped


class Jobs:
    """The jobs of one dashboard."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._running: set[asyncio.Task[None]] = set()
        """The loop itself holds its tasks weakly."""

    def find(self, key: str) -> Job | None:
        return self._jobs.get(key)

    def newest(self) -> list[Job]:
        return list(reversed(self._jobs.values()))

    def begin(self, job: Job, ask: Asker) -> None:
        """Counts in the background. Raises Busy."""
        self._check_free()
        self._jobs[job.key] = job
        ended = [each for each in self._jobs.values() if not each.is_under_way]
        for each in ended[: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[each.key]
        self._run(partial(job.count, ask))

    def confirm(self, job: Job, ask: Asker) -> None:
        """Begins with the tasks. Raises Busy. Nothing happens to a job that has begun."""
        if job.phase == "counted":
            self._check_free()
            job.phase = "working"
            self._run(partial(job.work, ask))

    def _run(self, work: Callable[[], Any]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _check_free(self) -> None:
        if sum(job.is_under_way for job in self._jobs.values()) >= AT_ONCE:
            raise Busy(
                f"{AT_ONCE} commands on many tasks are under way: wait for one of them, or stop one; then repeat"
            )
