"""Commands on all tasks that match: counted, confirmed, and followed until they are done.

A job runs in the background of this process: when that ends, a job under way ends after its page, and what it did stays
done.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shardq import Engine
from shardq.core.model.printable import printable, quoted
from shardq.dashboard.snapshots import Caller
from shardq.dashboard.tasks import METHODS, VERBS, TaskFilter, due_of
from shardq.dashboard.web import Form, action, dashboard_of, done, page, rendered
from shardq.errors import BadInput, InvalidOption, ShardqError
from shardq.features.listing.bulk import DONE, BulkResult

Phase = Literal["counting", "counted", "working", "done", "stopped", "failed"]

AT_ONCE = 4
"""Jobs under way. Each holds one of the threads that ask the servers."""

KEPT = 50
"""Jobs that are remembered; the oldest ones that have ended are forgotten."""

NO_JOB = "There is no such command on many tasks: the dashboard was started anew, or has forgotten it."

_DONE = dict[str, str](DONE.items()) | {"remove": "removed"}


class _Stopped(Exception):
    """The job was told to end, between two pages."""


@dataclass(slots=True, eq=False)
class Job:
    """One command on many tasks."""

    verb: str
    """One of ``VERBS``."""
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

    async def count(self, call: Caller) -> None:
        """Counts the tasks, to be shown before the question. That can be stopped: millions take minutes."""
        result = await self._walk(call, dry_run=True)
        if result is not None:
            self.counted, self.is_counted = result.matched, True
        if self.phase in ("counting", "stopped"):
            self.phase, self._stopping = "counted", False

    async def work(self, call: Caller) -> None:
        """Gives each task the command."""
        result = await self._walk(call, dry_run=False)
        if result is not None:
            self.result, self.phase = result, "done"

    async def _walk(self, call: Caller, *, dry_run: bool) -> BulkResult | None:
        """Returns the result, or None if it did not come to the end."""

        def progress(so_far: BulkResult) -> None:
            if dry_run:
                self.counted = so_far.matched
            else:
                self.result = so_far
            if self._stopping:
                raise _Stopped

        def command(engine: Engine) -> BulkResult:
            method: Callable[..., BulkResult] = getattr(engine, f"{METHODS.get(self.verb, self.verb)}_all")
            return method(**self.arguments, dry_run=dry_run, progress=progress)

        try:
            return await call(command)
        except _Stopped:
            self.phase = "stopped"
        except ShardqError as exc:
            self.phase, self.error = "failed", "\n".join((str(exc), *getattr(exc, "__notes__", ())))
        except BaseException:
            # the loop ends, or there is a fault of ours
            self._stopping = True
            self.phase = "stopped"
            raise
        return None


class Jobs:
    """The jobs of one dashboard."""

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._jobs: dict[str, Job] = {}
        self._running: set[asyncio.Task[None]] = set()
        """The loop itself holds its tasks weakly."""

    def find(self, key: str) -> Job:
        if (job := self._jobs.get(key)) is None:
            raise HTTPException(404, NO_JOB)
        return job

    def newest(self) -> list[Job]:
        return list(reversed(self._jobs.values()))

    def begin(self, job: Job) -> None:
        """Counts in the background."""
        self._check_free()
        self._jobs[job.key] = job
        ended = [each for each in self._jobs.values() if not each.is_under_way]
        for each in ended[: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[each.key]
        self._run(job.count(self._call))

    def confirm(self, job: Job) -> None:
        """Begins with the tasks, unless the job has begun with them."""
        if job.phase == "counted":
            self._check_free()
            job.phase = "working"
            self._run(job.work(self._call))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _check_free(self) -> None:
        if sum(job.is_under_way for job in self._jobs.values()) >= AT_ONCE:
            raise BadInput(
                f"{AT_ONCE} commands on many tasks are under way: wait for one of them, or stop one; then repeat"
            )


def _jobs(request: Request) -> Jobs:
    found: Jobs = request.app.state.jobs
    return found


async def jobs(request: Request) -> Response:
    return rendered(request, "jobs.html", jobs=_jobs(request).newest())


async def job(request: Request) -> Response:
    return rendered(request, "job.html", job=_jobs(request).find(request.path_params["key"]), done=_DONE)


async def count(request: Request, form: Form) -> Response:
    """Begins with the count of what the form's filter matches."""
    verb, filter = form.text("verb"), await TaskFilter.of(form.text).dated(dashboard_of(request).call)
    if verb not in VERBS:
        raise InvalidOption(f"verb={quoted(verb)} is not possible; use one of {', '.join(VERBS)}")
    if filter.holder:
        raise InvalidOption("leased tasks are left alone: leave the holder out")
    if filter.name:
        raise InvalidOption("no command knows tasks by name: mark them in the list, or give their topic or a tag")
    if verb == "remove":
        filter = replace(filter, state=filter.state or "dead")
        if filter.state != "dead" or filter.due or filter.failed:
            raise InvalidOption("dead tasks are removed; others are cancelled: leave state, due and failed out")
    arguments: dict[str, Any] = filter.arguments()
    del arguments["holder"]
    if verb == "requeue":
        if arguments.pop("state") not in (None, "dead") or arguments.pop("due") is not None or filter.failed:
            raise InvalidOption("dead tasks are requeued, of a topic or all: leave state, due and failed out")
        arguments["everything"] = not (filter.topic or filter.key or filter.tag)
        filter = TaskFilter(topic=filter.topic, state="dead", key=filter.key, tag=filter.tag)
    else:
        arguments["everything"] = not filter.fields
    arguments["reason"] = form.text("reason") or None
    words = f"{verb.capitalize()} {filter.sentence()}"
    if arguments.get("reason"):
        words += f" that {'failed' if filter.failed else 'died'} of {printable(arguments['reason'])}"
    if verb == "reschedule":
        arguments |= due_of(form, "to")
        words += f" to {'now' if form.text('to') == '0' else form.text('to')}"
    found = Job(verb, words, arguments)
    _jobs(request).begin(found)
    return done(request, "", back=f"/tasks/bulk/{found.key}")


async def confirm(request: Request, form: Form) -> Response:
    found = _jobs(request).find(form.text("key"))
    _jobs(request).confirm(found)
    return done(request, "", back=f"/tasks/bulk/{found.key}")


async def stop(request: Request, form: Form) -> Response:
    found = _jobs(request).find(form.text("key"))
    found.stop()
    return done(request, "It ends after the page under way.", back=f"/tasks/bulk/{found.key}")


routes: list[Route] = [
    page("/tasks/bulk", jobs),
    action("/tasks/bulk/count", count),
    action("/tasks/bulk/confirm", confirm),
    action("/tasks/bulk/stop", stop),
    page("/tasks/bulk/{key}", job),
]
