"""Commands on all tasks that match: counted, confirmed, and followed until they are done. ``jobs`` carries them out."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shardq.core.model.printable import printable
from shardq.dashboard.asked import Asked
from shardq.dashboard.jobs import Job
from shardq.dashboard.pages.task import due_of
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import Form, action, done, page
from shardq.dashboard.visit import dashboard_of
from shardq.errors import InvalidOption
from shardq.features.listing.bulk import DONE, STATES

NO_JOB = "There is no such command on many tasks: the dashboard was started anew, or has forgotten it."


async def jobs(request: Request) -> Response:
    return rendered(request, "jobs.html", jobs=dashboard_of(request).jobs.newest(), done=DONE)


async def job(request: Request) -> Response:
    return rendered(request, "job.html", job=_job(request), done=DONE)


async def count(request: Request, form: Form) -> Response:
    """Begins with the count of what the form's filter matches."""
    dashboard, verb = dashboard_of(request), form.text("verb")
    if verb not in STATES:
        raise InvalidOption(f"verb={verb!r:.80} is not possible; use one of {', '.join(STATES)}")
    asked = await Asked.of(form.text).dated(dashboard.ask)
    if asked.holder:
        raise InvalidOption("leased tasks are left alone: leave the holder out")
    arguments: dict[str, Any] = asked.arguments()
    del arguments["holder"]
    if verb == "requeue":
        if arguments.pop("state") not in (None, "dead") or arguments.pop("due") is not None:
            raise InvalidOption("dead tasks are requeued, of a topic or all: leave state and due out")
        arguments["everything"] = arguments["topic"] is None
        asked = Asked(topic=asked.topic, state="dead")
        arguments["reason"] = form.text("reason") or None
    else:
        arguments["everything"] = asked.is_all
    words = f"{verb.capitalize()} {asked.sentence()}"
    if arguments.get("reason"):
        words += f" that died of {printable(arguments['reason'])}"
    if verb == "reschedule":
        arguments |= due_of(form, "to")
        words += f" to {form.text('to')}"
    found = Job(verb, words, arguments)  # type: ignore[arg-type]  # checked above
    dashboard.jobs.begin(found, dashboard.ask)
    return done(request, "", back=f"/tasks/bulk/{found.key}")


async def confirm(request: Request, form: Form) -> Response:
    dashboard, found = dashboard_of(request), _named(request, form)
    dashboard.jobs.confirm(found, dashboard.ask)
    return done(request, "", back=f"/tasks/bulk/{found.key}")


async def stop(request: Request, form: Form) -> Response:
    found = _named(request, form)
    found.stop()
    return done(request, "It ends after the page under way.", back=f"/tasks/bulk/{found.key}")


def _job(request: Request, key: str | None = None) -> Job:
    found = dashboard_of(request).jobs.find(request.path_params["key"] if key is None else key)
    if found is None:
        raise HTTPException(404, NO_JOB)
    return found


def _named(request: Request, form: Form) -> Job:
    return _job(request, form.text("key"))


routes = [
    page("/tasks/bulk", jobs),
    action("/tasks/bulk/count", count),
    action("/tasks/bulk/confirm", confirm),
    action("/tasks/bulk/stop", stop),
    page("/tasks/bulk/{key}", job),
]
