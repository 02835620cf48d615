"""The topics, and the schedules that push to them: what is set for each, and the actions that change it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shardq import Engine
from shardq.core.fleet.lateness import Lateness
from shardq.core.model.checks import check_topic
from shardq.core.model.ids import shown_topic
from shardq.core.model.printable import quoted
from shardq.core.model.quantities import expiry
from shardq.dashboard.formats import line
from shardq.dashboard.links import link_of
from shardq.dashboard.web import (
    Form,
    Handler,
    action,
    dashboard_of,
    done,
    drawn,
    live_page,
    newest,
    page,
    rate_of,
    rendered,
)
from shardq.engine.around import Column, tables
from shardq.errors import InvalidOption, ShardqError
from shardq.features.schedules.every import check_schedule_name

MOST = 75
"""Topics that are listed: those with the most tasks that wait for a consumer, and then by name."""

PER_PAGE = 50
"""Schedules that are listed at once."""


# ---- topics


async def topics(request: Request) -> dict[str, Any]:
    found = await newest(request)
    if found["snapshot"] is None:
        return found | {"view": None}
    view = tables.topics(found["snapshot"].health)
    rows = sorted(view.rows, key=lambda row: (-row[1].ready if len(view.rows) > MOST else 0, row[0]))
    per_s = Column[tables.TopicRow]("dispatched/s", lambda row: tables.per_second(row[1].dispatched_per_s))
    return found | {
        "view": drawn(view, rows[:MOST], [*view.columns[:-1], per_s, view.columns[-1]]),
        "more": len(rows) - MOST,
        "address": lambda row: link_of("/topics/one", topic=row[0]),
    }


async def topic(request: Request) -> dict[str, Any]:
    name = request.query_params.get("topic", "")
    check_topic(name)
    found = await newest(request)
    snapshot = found["snapshot"]
    fleet = snapshot.fleet if snapshot else []
    topic = snapshot.stats.topics.get(name) if snapshot else None
    try:
        keys = await dashboard_of(request).snapshots.keys(name) if topic else None
    except ShardqError:
        keys = None  # the snapshot says that the shards do not answer
    return found | {
        "name": name,
        "topic": topic,
        "settings": tables.topic_settings(topic).split("; ") if topic and tables.topic_settings(topic) else [],
        "live_query": {"topic": name},
        "dispatch": Lateness.total(each.dispatch_lateness.get(name, Lateness()) for each in fleet),
        "keys": keys and drawn(tables.keys(keys), keys),
        "whole": keys is not None and keys.is_whole,
        "key_address": lambda row: link_of("/tasks", topic=shown_topic(name), key=row.key),
        "has_keys": topic is not None and dashboard_of(request).engine.topology.is_keyed,
        "pickup": Lateness.total(each.pickup_lateness.get(name, Lateness()) for each in fleet),
        "key_wait": Lateness.total(each.key_wait.get(name, Lateness()) for each in fleet),
    }


def _on_topic(call: Callable[[Engine, str], Any], said: str) -> Handler:
    async def handler(request: Request, form: Form) -> Response:
        name = form.text("topic")
        await dashboard_of(request).change(lambda engine: call(engine, name))
        back = link_of("/topics/one", topic=name) if form.text("from") == "one" else "/topics"
        return done(request, shown_topic(name) + said, back=back)

    return handler


def _ask_to_pause(form: Form) -> tuple[str, str]:
    name = form.text("topic")
    check_topic(name)
    return f"Pause {shown_topic(name)}, over the whole fleet? No task of it is handled until it is resumed.", "Pause"


async def limit(request: Request, form: Form) -> Response:
    rate, concurrency = rate_of(form.text("rate"), "for no limit"), _whole(form.text("concurrency"))
    per_key, per_key_rate = _whole(form.text("per_key")), rate_of(form.text("per_key_rate"), "for no limit")
    parts = [] if rate is None else [f"{rate:,g} tasks a second"]
    parts += [] if concurrency is None else [f"{concurrency:,} at once"]
    parts += [] if per_key is None else [f"{per_key:,} of each key at once"]
    parts += [] if per_key_rate is None else [f"{per_key_rate:,g} of each key a second"]
    said = f": {' and '.join(parts) or 'no limits'}, over the whole fleet"

    def call(engine: Engine, name: str) -> Any:
        before = engine.topology.settings_of(name).limit
        mode = before.on_failure if before is not None and per_key == 1 else None
        return engine.limit(
            name, rate=rate, concurrency=concurrency, per_key=per_key, per_key_rate=per_key_rate, on_failure=mode
        )

    return await _on_topic(call, said)(request, form)


async def hold(request: Request, form: Form) -> Response:
    """Puts a key on hold, or lets it go on."""
    name, key, word = form.text("topic"), "".join(form.all("key")[:1]), form.text("until")
    try:
        until = expiry(word) if word else None
    except ValueError as exc:
        raise InvalidOption(f"until: {exc}; leave it empty to let the key go on") from None
    if isinstance(until, float):
        until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=until)
    await dashboard_of(request).change(lambda engine: engine.hold(name, key=key, until=until))
    said = "goes on" if until is None else f"gives out nothing until {tables.instant(until.astimezone(dt.UTC))} UTC"
    return done(
        request, f"The key {line(key, 80)} of {shown_topic(name)} {said}.", back=link_of("/topics/one", topic=name)
    )


def _whole(text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit() and len(text) <= 7):
        raise InvalidOption(f"{quoted(text)} is not a number of tasks; write 1 or more, or leave it empty for no limit")
    return int(text) if text else None


# ---- schedules


async def schedules(request: Request) -> Response:
    """The schedules, when each runs next, and the buttons to pause, run and remove one."""
    word, begin = request.query_params.get("name", "").strip(), request.query_params.get("begin", "0")
    if not (begin.isascii() and begin.isdigit() and len(begin) <= 6):
        raise InvalidOption(f"begin={quoted(begin)} is not possible; go to a page by its links")
    found = [each for each in await dashboard_of(request).call(lambda engine: engine.schedules()) if word in each.name]
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


def _schedule(form: Form) -> str:
    name = form.text("schedule")
    check_schedule_name(name)
    return name


def _schedule_button(verb: str, call: Callable[[Engine, str], Any], said: str, *, ask: str = "") -> Route:
    """The route of a button of each schedule. ``ask``: the question before it, with {} for the name."""

    async def handler(request: Request, form: Form) -> Response:
        name = _schedule(form)
        found = await dashboard_of(request).change(lambda engine: call(engine, name))
        task = link_of("/tasks/one", id=str(found)) if verb == "run" else ""
        return done(request, said.format(name), back=task or link_of("/schedules", name=form.text("word")))

    word = "Run now" if verb == "run" else verb.capitalize()
    question = (lambda form: (ask.format(_schedule(form)), word)) if ask else None
    return action(f"/schedules/{verb}", handler, ask=question)


routes: list[Route] = [
    *live_page("/topics", "topics", topics),
    *live_page("/topics/one", "topic", topic, template="topic.html"),
    action(
        "/topics/pause",
        _on_topic(lambda engine, name: engine.pause(name), " is paused, over the whole fleet: what runs is finished"),
        ask=_ask_to_pause,
    ),
    action("/topics/resume", _on_topic(lambda engine, name: engine.resume(name), " is given out again")),
    action("/topics/limit", limit),
    action("/topics/hold", hold),
    page("/schedules", schedules),
    _schedule_button(
        "pause",
        lambda engine, name: engine.schedule(name).pause(),
        "{} is paused: what was pushed of it and is not due yet was taken back",
        ask="Pause {}? None of its occurrences runs until it is resumed, and none is made up for.",
    ),
    _schedule_button(
        "resume", lambda engine, name: engine.schedule(name).resume(), "{} goes on with its next occurrence"
    ),
    _schedule_button(
        "run",
        lambda engine, name: engine.schedule(name).run(),
        "a task of {} is due now",
        ask="Push a task of {} that is due now, beside its occurrences?",
    ),
    _schedule_button(
        "remove",
        lambda engine, name: engine.schedule(name).remove(),
        "{} is removed",
        ask="Remove {}? It comes back only when a program declares it again.",
    ),
]
