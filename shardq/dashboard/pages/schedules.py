"""The schedules: what recurs, when it runs next, and the buttons to pause, run and remove one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import Form, action, done, page
from shardq.dashboard.visit import dashboard_of, link_of
from shardq.errors import InvalidOption
from shardq.features.schedules.every import check_schedule_name

PER_PAGE = 50


async def schedules(request: Request) -> Response:
    asked = request.query_params
    word, begin = asked.get("name", "").strip(), asked.get("begin", "0")
    if not (begin.isascii() and begin.isdigit() and len(begin) <= 6):
        raise InvalidOption(f"begin={begin!r:.80} is not possible; go to a page by its links")
    found = [each for each in await dashboard_of(request).ask(lambda engine: engine.schedules()) if word in each.name]
    start = min(int(begin), max(0, len(found) - 1)) // PER_PAGE * PER_PAGE
    return rendered(
        request,
        "schedules.html",
        schedules=found[start : start + PER_PAGE],
        word=word,
        start=start,
        count=len(found),
        per_page=PER_PAGE,
    )


def _named(form: Form) -> str:
    name = form.text("schedule")
    check_schedule_name(name)
    return name


async def pause(request: Request, form: Form) -> Response:
    name = _named(form)
    await dashboard_of(request).changed(lambda engine: engine.pause_schedule(name))
    return _told(request, form, f"{name} is paused: what was pushed of it and is not due yet was taken back")


async def resume(request: Request, form: Form) -> Response:
    name = _named(form)
    await dashboard_of(request).changed(lambda engine: engine.resume_schedule(name))
    return _told(request, form, f"{name} goes on with its next occurrence")


async def run(request: Request, form: Form) -> Response:
    name = _named(form)
    receipt = await dashboard_of(request).changed(lambda engine: engine.run_schedule(name))
    return done(request, f"a task of {name} is due now", back=link_of("/tasks/one", id=str(receipt)))


async def remove(request: Request, form: Form) -> Response:
    name = _named(form)
    was_there = await dashboard_of(request).changed(lambda engine: engine.remove_schedule(name))
    return _told(request, form, f"{name} is removed" if was_there else f"there is no schedule {name} any more")


def _told(request: Request, form: Form, said: str) -> Response:
    return done(request, said, back=link_of("/schedules", name=form.text("word")))


def _ask_to_pause(form: Form) -> tuple[str, str]:
    return f"Pause {_named(form)}? None of its occurrences runs until it is resumed, and none is made up for.", "Pause"


def _ask_to_run(form: Form) -> tuple[str, str]:
    return f"Push a task of {_named(form)} that is due now, beside its occurrences?", "Run now"


def _ask_to_remove(form: Form) -> tuple[str, str]:
    return f"Remove {_named(form)}? It comes back only when a program declares it again.", "Remove"


routes = [
    page("/schedules", schedules),
    action("/schedules/pause", pause, ask=_ask_to_pause),
    action("/schedules/resume", resume),
    action("/schedules/run", run, ask=_ask_to_run),
    action("/schedules/remove", remove, ask=_ask_to_remove),
]
