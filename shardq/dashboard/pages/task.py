"""One task: all that is known of it, its payload, and cancel, requeue and reschedule."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shardq.core.model.durations import expiry
from shardq.core.model.printable import printable
from shardq.core.model.task import Outcome
from shardq.dashboard.payloads import fitting, shown
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import Form, action, done, page
from shardq.dashboard.visit import dashboard_of
from shardq.engine.sync import Engine
from shardq.errors import InvalidOption, PayloadNotDecodable
from shardq.features.listing.bulk import STATES

REASON = 6_000
"""Bytes of a reason, as the page has them: the end of a traceback says most."""

NO_TASK = "There is no such task: it is done, was cancelled, or was never pushed."

_SAID = {
    Outcome.CANCELLED: "was cancelled",
    Outcome.REQUEUED: "was requeued: it runs again, with all its attempts",
    Outcome.MOVED: "was rescheduled",
    Outcome.RUNNING: "was left alone: a worker has it",
    Outcome.GONE: "is gone: it is done, was cancelled, or was never pushed",
    Outcome.UNKNOWN: "is gone, or was dealt with just now: the answer was lost",
    Outcome.SPOOLED: "will be dealt with when Redis can be reached again",
}


async def task(request: Request) -> Response:
    ask, id = dashboard_of(request).ask, request.query_params.get("id", "")
    undecodable = ""
    try:
        found = await ask(lambda engine: engine.get(id))
    except PayloadNotDecodable as exc:
        undecodable = str(exc)
        found = await ask(lambda engine: engine.get(id, decode=False))
    if found is None:
        raise HTTPException(404, NO_TASK)
    return rendered(
        request,
        "task.html",
        task=found,
        payload=shown(found.payload),
        undecodable=undecodable,
        reason=fitting(printable((found.reason or "")[-REASON:], keep="\n\t"), REASON, end=True),
        verbs=[verb for verb, states in STATES.items() if found.state in states],
        now=dt.datetime.now(dt.UTC),
    )


async def cancel(request: Request, form: Form) -> Response:
    return await _command(request, form, lambda engine, id: engine.cancel(id))


def _ask_to_cancel(form: Form) -> tuple[str, str]:
    return f"Cancel the task {printable(''.join(form.all('id')[:1])[:200])}? It is removed for good.", "Cancel the task"


async def requeue(request: Request, form: Form) -> Response:
    return await _command(request, form, lambda engine, id: engine.requeue(id))


async def reschedule(request: Request, form: Form) -> Response:
    due = due_of(form, "due")
    return await _command(request, form, lambda engine, id: engine.reschedule(id, **due))


def due_of(form: Form, field: str) -> dict[str, Any]:
    """The new due time in a form: ``delay=`` or ``at=`` of a command. Raises InvalidOption."""
    try:
        due = expiry(form.text(field))
    except ValueError as exc:
        raise InvalidOption(f"the new due time: {exc}") from None
    return {"at": due} if isinstance(due, dt.datetime) else {"delay": due}


async def _command(request: Request, form: Form, command: Callable[[Engine, str], Outcome]) -> Response:
    id = "".join(form.all("id")[:1])  # an id may begin with a blank
    outcome = await dashboard_of(request).ask(lambda engine: command(engine, id))
    said = _SAID.get(outcome, f"was left alone: it is {outcome}")
    ended = outcome in (Outcome.CANCELLED, Outcome.GONE, Outcome.UNKNOWN)
    return done(request, f"{printable(id)} {said}.", back="/tasks" if ended else place_of_task(id))


def place_of_task(id: str) -> str:
    return f"/tasks/one?{urlencode({'id': id})}"


routes = [
    page("/tasks/one", task),
    action("/tasks/cancel", cancel, ask=_ask_to_cancel),
    action("/tasks/requeue", requeue),
    action("/tasks/reschedule", reschedule),
]
